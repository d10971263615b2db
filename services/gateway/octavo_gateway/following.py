"""Who reads which stream, and where each reader stands. State without rules: those are the hub's."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from octavo_gateway.relay import Relay
from octavo_gateway.values import TokenPiece


@dataclass(slots=True, eq=False)
class Followed:
    """A relay with its task and its readers."""

    relay: Relay
    task: asyncio.Task[None]
    # Tenant under which the job may be cancelled.
    tenant: str
    readers: set[int] = field(default_factory=set)
    # When the job's own deadline passes, on the monotonic clock: then its end is not a cancellation.
    deadline_s: float | None = None
    # Once a reader wanted it to go on without readers, no other reader's leaving may cancel it.
    detached: bool = False
    # Gives it up when no reader comes back in time.
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class Reader:
    """One place in the log of one relay."""

    followed: Followed
    # Number of entries behind it, in the tape of each answer.
    positions: list[int]
    # Runs until it is read for the first time.
    timer: asyncio.TimerHandle

    def take(self) -> list[TokenPiece]:
        """What it has not had yet, in one piece for each answer."""
        pieces: list[TokenPiece] = []
        for number, tape in enumerate(self.followed.relay.tapes):
            entries = tape.entries[self.positions[number] :]
            if entries:
                # A reader that was behind gets all that came meanwhile in one piece.
                self.positions[number] += len(entries)
                pieces.append(TokenPiece.joined(entries))
        return pieces
