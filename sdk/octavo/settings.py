"""Reads the SDK's two settings from the environment: OCTAVO_ADDRESS and OCTAVO_API_KEY."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo.channel import DEFAULT_ADDRESS, parse_addresses


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the gateways are and which key to show them."""

    addresses: tuple[str, ...]
    api_key: str


def resolve(
    address: str | Sequence[str] | None, api_key: str | None, environ: Mapping[str, str] | None = None
) -> Target:
    """What was given, else what the environment says, else a gateway on this machine without a key."""
    environ = os.environ if environ is None else environ
    return Target(
        addresses=parse_addresses(address or environ.get("OCTAVO_ADDRESS") or DEFAULT_ADDRESS),
        api_key=api_key if api_key is not None else environ.get("OCTAVO_API_KEY", ""),
    )
