"""One pooled channel per address of another process. Knows no calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

ChannelFactory = Callable[[str], grpc.aio.Channel]


@dataclass(slots=True, eq=False)
class _Pooled:
    channel: grpc.aio.Channel
    num_users: int = 0
    # Out of the pool: closed by its last user.
    retired: bool = False


class ChannelPool:
    """Channels by address. State; for one event loop."""

    def __init__(self, make_channel: ChannelFactory) -> None:
        self._make_channel = make_channel
        self._channels: dict[str, _Pooled] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def is_connected(self, address: str) -> bool:
        """Whether a connection stands; where none does, one is begun."""
        pooled = self._pooled(address)
        return pooled.channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY

    def forget(self, address: str) -> None:
        """Drop the channel to an address: the next call connects anew instead of waiting for a back-off."""
        pooled = self._channels.pop(address, None)
        if pooled is not None:
            pooled.retired = True
            self._close_if_unused(pooled)

    def keep_only(self, addresses: Collection[str]) -> None:
        """Close unused channels to processes that are no more."""
        for address in [a for a, pooled in self._channels.items() if a not in addresses and not pooled.num_users]:
            self.forget(address)

    async def close(self) -> None:
        """Close all channels."""
        channels = [pooled.channel for pooled in self._channels.values()]
        self._channels.clear()
        await asyncio.gather(*(channel.close() for channel in channels), *self._closing)

    @contextmanager
    def use(self, address: str) -> Iterator[grpc.aio.Channel]:
        """The channel, which is not closed while the context is open."""
        pooled = self._pooled(address)
        pooled.num_users += 1
        try:
            yield pooled.channel
        finally:
            pooled.num_users -= 1
            self._close_if_unused(pooled)

    def _pooled(self, address: str) -> _Pooled:
        pooled = self._channels.get(address)
        if pooled is None:
            pooled = self._channels[address] = _Pooled(self._make_channel(address))
        return pooled

    def _close_if_unused(self, pooled: _Pooled) -> None:
        if pooled.retired and not pooled.num_users:
            task = asyncio.ensure_future(pooled.channel.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
