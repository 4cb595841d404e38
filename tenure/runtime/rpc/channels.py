"""The gRPC channel behind a `TenureChannel`: another one after a change of certificates, and none after a fork.

gRPC fixes the credentials of a channel when it opens the channel. So a changed file leads to a second gRPC channel:
it connects, new calls go to it, and the calls of the first one have some time to end. A stream that is still open
then ends with Unavailable, as when its server ends the connection, and its loop opens it again.

gRPC does not work in the child of a process that has used it: its threads are gone and their locks are held. A child
that calls it hangs or crashes. So such a child is refused before it calls gRPC.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any, Final

import grpc

from tenure.runtime.settings import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Coroutine

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


class UsedBeforeFork(RuntimeError):  # noqa: N818  the name says what happened
    """A parent of this process used gRPC before it forked this process, so gRPC cannot be used here."""


def is_used_before_fork() -> bool:
    """Whether a parent of this process had opened a channel before it forked this process."""
    return bool(_users) and os.getpid() not in _users


def refuse_after_fork() -> None:
    """Raises UsedBeforeFork in a process whose parent had opened a channel."""
    if is_used_before_fork():
        raise UsedBeforeFork(
            "this process was forked from one that had already called Tenure, and gRPC hangs or crashes in such a "
            "child. Make the first call after the fork (in Celery in worker_process_init, in gunicorn in post_fork), "
            'or start the process with multiprocessing.get_context("spawn")'
        )


_users: Final[set[int]] = set()
"""This process, or the parent that had opened a channel before it forked."""


class ChannelRenewal:
    """The gRPC channel of a `TenureChannel`. `tls` None: without TLS. It needs a running event loop."""

    def __init__(self, target: str, options: Options, tls: ChannelTls | None) -> None:
        refuse_after_fork()
        _users.add(os.getpid())
        self._target, self._options = target, options
        self._former: set[grpc.aio.Channel] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        if tls is None:
            self.current = grpc.aio.insecure_channel(target, options=options)
        else:
            files = tls.read()
            self.current = self._opened(tls, files)
            self._run(self._renew_forever(tls, files), f"certificates for {target}")

    async def close(self, grace: float | None) -> None:
        """Closes the connections and, after `grace` seconds, ends the calls that still run.

        Does nothing in the child of a fork: the connections are the parent's.
        """
        if is_used_before_fork():
            return
        running = list(self._tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.gather(*(channel.close(grace) for channel in (self.current, *self._former)))

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
        former, self.current = self.current, second
        self._former.add(former)
        self._run(self._drain(former), f"drain of {self._target}")
        _log.info("connected with new certificate files", extra={"target": self._target})

    async def _drain(self, former: grpc.aio.Channel) -> None:
        await asyncio.sleep(DRAIN_SECONDS)
        self._former.discard(former)
        await former.close()
