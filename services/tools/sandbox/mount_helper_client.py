"""The client of the mount helper, the process that mounts workspaces into warm sandboxes."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from asyncio.subprocess import DEVNULL, Process
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from services.tools.sandbox.limits import SandboxUnavailable

_SCRIPT = Path(__file__).with_name("mount_helper.py")
_OK = b"ok"
_ANSWER_BYTES = 8192
_STARTS_WITHIN_SECONDS = 60.0
_ANSWERS_WITHIN_SECONDS = 10.0
_ENDS_WITHIN_SECONDS = 10.0


class MountHelperClient:
    """A running mount helper.

    `namespaces` are the descriptors of the user namespace and the mount namespace, in this order, in which sandboxes
    must start so that the mount helper has rights over them. The tuple is empty when the service is root.
    """

    def __init__(self, process: Process, channel: socket.socket) -> None:
        self.namespaces: tuple[int, ...] = ()
        self._process, self._channel = process, channel
        self._owned = ExitStack()
        self._owned.enter_context(channel)
        self._request_lock = threading.Lock()

    @classmethod
    async def start(cls, *, own_namespaces: bool) -> Self:
        """Starts the mount helper. Raises SandboxUnavailable when this machine does not permit what it needs.

        Also raises OSError, or TimeoutError when the mount helper does not answer in time.
        """
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            try:
                process = await _spawn(there, own_namespaces=own_namespaces)
            except BaseException:
                here.close()
                raise
        mount_helper = cls(process, here)
        try:
            await mount_helper._wait_until_ready(own_namespaces=own_namespaces)
        except BaseException:
            await mount_helper.close()
            raise
        return mount_helper

    async def _wait_until_ready(self, *, own_namespaces: bool) -> None:
        self._channel.setblocking(False)
        async with asyncio.timeout(_STARTS_WITHIN_SECONDS):
            answer = await asyncio.get_running_loop().sock_recv(self._channel, _ANSWER_BYTES)
        if answer != _OK:
            reason = answer.decode(errors="replace") or "the mount helper ended"
            raise SandboxUnavailable(f"no workspace can be mounted into a warm sandbox: {reason}")
        self._channel.settimeout(_ANSWERS_WITHIN_SECONDS)
        if own_namespaces:
            self.namespaces = tuple(self._open_namespace(name) for name in ("user", "mnt"))

    def _open_namespace(self, name: str) -> int:
        fd = os.open(f"/proc/{self._process.pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        self._owned.callback(os.close, fd)
        return fd

    @property
    def is_alive(self) -> bool:
        """Tells whether requests can be sent. False for good once the mount helper did not answer a request."""
        return self._process.returncode is None and self._channel.fileno() >= 0

    def attach(self, mount_namespace: int, workspace: Path) -> None:
        """Mounts the workspace into the sandbox with this mount namespace. Blocks briefly; thread-safe.

        Raises OSError. The workspace may be mounted all the same, so the caller must not use the sandbox then.
        """
        with self._request_lock:
            try:
                socket.send_fds(self._channel, [os.fsencode(workspace.absolute())], [mount_namespace])
                answer = self._channel.recv(_ANSWER_BYTES)
            except OSError:
                self._channel.close()  # a late answer must not be read as the answer to the next request
                raise
        if answer != _OK:
            raise OSError(answer.decode(errors="replace") or "the mount helper ended")

    async def close(self) -> None:
        """Ends the mount helper and waits for its exit. Kills a mount helper that does not exit in time."""
        self._owned.close()
        try:
            async with asyncio.timeout(_ENDS_WITHIN_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


async def _spawn(channel: socket.socket, *, own_namespaces: bool) -> Process:
    options = ["--own-namespaces"] if own_namespaces else []
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(_SCRIPT), *options),
        stdin=channel.fileno(),
        stdout=DEVNULL,
        stderr=DEVNULL,
        env={},
        cwd="/",
        start_new_session=True,
    )
