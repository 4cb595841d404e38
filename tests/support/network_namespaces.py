"""Network namespaces of Linux, as root: hosts with cables of their own, on which packets get lost without a word.

A namespace lives as long as a process in it, and that process dies with this one: nothing is left behind, also after
a crash. All addresses are inside of such namespaces; they meet ours only in relays, which hold a socket on either side.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from tests.support.fix_proxy import HOST, Lost, TcpProxy
from tests.support.patience import PATIENCE_SECONDS

NOBODYS_ETHERNET_ADDRESS = "02:00:00:00:00:fe"
"""Frames sent there are dropped by who receives them."""

_CLONE_NEWNET = 0x40000000
_T = TypeVar("_T")


@functools.cache
def why_not() -> str:
    """Why this process cannot have network namespaces; empty when it can."""
    if sys.platform != "linux":
        return "not Linux"
    if os.geteuid() != 0:
        return "not root"
    missing = [program for program in ("ip", "unshare", "nsenter", "sleep") if shutil.which(program) is None]
    if missing:
        return f"no {' and no '.join(missing)} installed"
    try:
        trial = Namespace()
    except (OSError, subprocess.SubprocessError) as error:
        return f"namespaces are refused: {error}"
    trial.close()
    return ""


class Namespace:
    """A network of its own, empty but for its loopback. Close it at the end. Raises OSError when it is refused."""

    def __init__(self) -> None:
        command = [_program("unshare"), "--net", _program("sleep"), "infinity"]
        self._holder = subprocess.Popen(command, stderr=subprocess.PIPE)
        self._wait_until_apart()
        self.ip("link", "set", "lo", "up")

    def _wait_until_apart(self) -> None:
        ends_at = time.monotonic() + PATIENCE_SECONDS
        while Path(self._path).readlink() == Path("/proc/self/ns/net").readlink():
            if self._holder.poll() is not None or time.monotonic() > ends_at:
                raise OSError(f"unshare: {self.close() or 'no answer'}")
            time.sleep(0.005)

    @property
    def pid(self) -> int:
        return self._holder.pid

    @property
    def _path(self) -> str:
        return f"/proc/{self.pid}/ns/net"

    def command(self, argv: list[str]) -> list[str]:
        """The command line that runs a program in it."""
        return [_program("nsenter"), f"--net={self._path}", "--", *argv]

    def ip(self, *arguments: str) -> None:
        """Runs iproute2's `ip` in it."""
        done = subprocess.run(
            self.command([_program("ip"), *arguments]),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")

    async def run(self, work: Callable[[], _T]) -> _T:
        """Calls `work` by a thread that is in it: a socket belongs to where it was made."""

        def enter_and_work() -> _T:
            former = os.open(f"/proc/self/task/{_thread_id()}/ns/net", os.O_RDONLY)
            try:
                _set_namespace(self._path)
                return work()
            finally:
                _set_namespace(former)
                os.close(former)

        return await asyncio.to_thread(enter_and_work)

    def close(self) -> str:
        """Ends it, when nothing else runs in it any more; what was said on standard error."""
        self._holder.kill()
        return self._holder.communicate()[1].decode().strip()


class InwardRelay(TcpProxy):
    """From our loopback to the loopback of a namespace."""

    def __init__(self, namespace: Namespace, port: int) -> None:
        super().__init__(HOST, port)
        self._namespace = namespace

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        inside = await self._namespace.run(socket.socket)
        inside.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(inside, self._target)
        except OSError:
            inside.close()
            raise
        return await asyncio.open_connection(sock=inside)


_OPTION_OF_SETTING: Final = {
    "tcp_keepalives_idle": "TCP_KEEPIDLE",
    "tcp_keepalives_interval": "TCP_KEEPINTVL",
    "tcp_keepalives_count": "TCP_KEEPCNT",
    "tcp_user_timeout": "TCP_USER_TIMEOUT",
}
"""Names, because only Linux has all of them."""


class Cable(TcpProxy):
    """From a namespace over a pair of interfaces of its own to `target` on our side.

    The far end of the pair is in `far`, where a relay listens; a cut is made on the pair itself, so that connections
    stay, packets are lost without an error. `session_settings`: those of a Postgres at the target. It has the relay
    in place of the silent client, so the relay applies its keepalives.
    """

    def __init__(self, number: int, near: Namespace, far: Namespace, target: tuple[str, int]) -> None:
        super().__init__(*target)
        self.session_settings: Mapping[str, str] = {}
        self._near, self._far = near, far
        self._near_device, self._far_device = f"near{number}", f"far{number}"
        network = f"10.213.{number // 64}"
        self._far_ip, self._near_ip = f"{network}.{number % 64 * 4 + 1}", f"{network}.{number % 64 * 4 + 2}"

    @property
    def address(self) -> str:
        return f"{self._far_ip}:{self.port}"

    def lay(self) -> None:
        """Makes the interfaces; they go with their namespaces."""
        peer = ("peer", "name", self._near_device, "netns", str(self._near.pid))
        self._far.ip("link", "add", self._far_device, "type", "veth", *peer)
        for namespace, device, address in (
            (self._far, self._far_device, self._far_ip),
            (self._near, self._near_device, self._near_ip),
        ):
            namespace.ip("address", "add", f"{address}/30", "dev", device)
            namespace.ip("link", "set", device, "up")

    def deaf(self, lost: Lost = Lost.EVERYTHING) -> None:
        """Packets are lost, those of one direction or all."""
        if lost is not Lost.ANSWERS:
            self._misdirect(self._near, self._near_device, self._far_ip)
        if lost is not Lost.REQUESTS:
            self._misdirect(self._far, self._far_device, self._near_ip)

    def observe(self) -> None:
        """Both directions pass again."""
        super().observe()
        if self.port:
            for namespace, device in ((self._near, self._near_device), (self._far, self._far_device)):
                namespace.ip("neighbour", "flush", "dev", device, "nud", "permanent")

    def _misdirect(self, namespace: Namespace, device: str, ip: str) -> None:
        entry = (ip, "lladdr", NOBODYS_ETHERNET_ADDRESS, "dev", device, "nud", "permanent")
        namespace.ip("neighbour", "replace", *entry)

    async def _listen(self, port: int) -> socket.socket:
        listener: socket.socket = await self._far.run(lambda: socket.create_server((self._far_ip, port)))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, option in _OPTION_OF_SETTING.items():
            if value := self.session_settings.get(name):  # the sockets of its connections inherit the options
                listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), int(value))
        return listener


def _program(name: str) -> str:
    program = shutil.which(name)
    if program is None:
        raise OSError(f"{name} is not installed")
    return program


def _thread_id() -> int:
    return ctypes.CDLL(None).gettid()  # type: ignore[no-any-return]  # ctypes knows an int


def _set_namespace(where: str | int) -> None:
    """os.setns, which Python has only from 3.12."""
    descriptor = os.open(where, os.O_RDONLY) if isinstance(where, str) else where
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        if isinstance(where, str):
            os.close(descriptor)
