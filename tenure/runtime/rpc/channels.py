"""The gRPC channel behind a `TenureChannel`: another one after a change of certificates, and none during a fork.

gRPC fixes the credentials of a channel when it opens the channel. So a changed file leads to a second gRPC channel:
it connects, new calls go to it, and the calls of the first one have some time to end. A stream that is still open
then ends with Unavailable, as when its server ends the connection, and its loop opens it again.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from typing import TYPE_CHECKING, Any, Final

import grpc

from tenure.runtime.settings import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tenure.runtime.rpc.client import TranslatedCall
    from tenure.runtime.rpc.options import Options
    from tenure.runtime.security.tls import ChannelTls, PemFiles

CHECK_SECONDS: Final = 5.0
"""Between two looks at the files."""
CONNECT_SECONDS: Final = 30.0
"""For the second channel to connect. After that it replaces the first one anyway: an authority that the first one
trusts may be withdrawn.
"""
DRAIN_SECONDS: Final = 60.0
"""For the calls of the first channel to end: as long as a server gives them at the end of a connection."""
_log: Final = logging.getLogger(__name__)


class ChannelRenewal:
    """The gRPC channel of a `TenureChannel`. `tls` None: without TLS. It needs a running event loop.

    `methods`: those of the current channel, by what makes them. `streams`: the calls with a stream.
    """

    def __init__(self, target: str, options: Options, tls: ChannelTls | None) -> None:
        self._target, self._options, self._tls = target, options, tls
        self._former: set[grpc.aio.Channel] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._current: grpc.aio.Channel | None = None
        self.methods: dict[Callable[[], Any], Any] = {}
        self.streams: weakref.WeakSet[TranslatedCall] = weakref.WeakSet()
        self._open()

    @property
    def is_open(self) -> bool:
        """Whether it has a channel. It opens another one after a `suspend`."""
        return self._current is not None

    @property
    def current(self) -> grpc.aio.Channel:
        """The channel for new calls."""
        return self._current or self._open()

    def belongs_to(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether it is open in this event loop."""
        return self.is_open and self._loop is loop

    async def suspend(self) -> None:
        """Closes the connections and ends the calls that still run. The next call opens them again."""
        await self.close(None)
        self._current = None
        self._former.clear()
        self.methods.clear()
        for call in self.streams:
            call.release()
        self.streams.clear()

    async def close(self, grace: float | None) -> None:
        """Closes the connections and, after `grace` seconds, ends the calls that still run."""
        running = list(self._tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        opened = [self._current] if self._current else []
        await asyncio.gather(*(channel.close(grace) for channel in (*opened, *self._former)))

    def _open(self) -> grpc.aio.Channel:
        self._loop = asyncio.get_running_loop()
        if self._tls is None:
            self._current = grpc.aio.insecure_channel(self._target, options=self._options)
        else:
            files = self._tls.read()
            self._current = self._opened(self._tls, files)
            self._run(self._renew_forever(self._tls, files), f"certificates for {self._target}")
        _open_channels.add(self)
        return self._current

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _opened(self, tls: ChannelTls, files: PemFiles) -> grpc.aio.Channel:
        credentials = grpc.ssl_channel_credentials(*files)
        return grpc.aio.secure_channel(self._target, credentials, options=[*self._options, *tls.options()])

    async def _renew_forever(self, tls: ChannelTls, used: PemFiles) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                files = tls.read()
            except ConfigurationError as error:
                _log.error("the certificate files cannot be read; the present ones stay in use", extra={"error": error})
                continue
            if files != used:
                await self._replace(self._opened(tls, files))
                used = files

    async def _replace(self, second: grpc.aio.Channel) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await second.channel_ready()
        except TimeoutError:
            _log.error(
                "no server can be reached with the new certificate files; the former ones are not used any more",
                extra={"target": self._target},
            )
        except asyncio.CancelledError:
            await second.close()
            raise
        former, self._current = self.current, second
        self.methods.clear()
        self._former.add(former)
        self._run(self._drain(former), f"drain of {self._target}")
        _log.info("connected with new certificate files", extra={"target": self._target})

    async def _drain(self, former: grpc.aio.Channel) -> None:
        await asyncio.sleep(DRAIN_SECONDS)
        self._former.discard(former)
        await former.close()


_open_channels: Final[weakref.WeakSet[ChannelRenewal]] = weakref.WeakSet()


async def suspend_channels() -> None:
    """Closes all channels of this event loop. Each opens again at its next call, in the event loop of that call.

    Calls that run end with Unavailable, and no error keeps a call: gRPC ends its threads when its last object is gone.
    """
    loop = asyncio.get_running_loop()
    for channel in [each for each in _open_channels if each.belongs_to(loop)]:
        await channel.suspend()
