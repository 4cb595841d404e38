"""One Postgres, one etcd and one server of forks for a whole run. They start when a test first needs them.

The process that began the run owns them: pytest itself, or the controller of its workers (`-n`). A worker asks the
controller at a socket, whose address it got with its start, and the answer comes when the store serves.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Final, TypeAlias

import psycopg
import pytest
from psycopg import sql

from devstack import watchdog
from devstack.etcd import EtcdMember, start_etcd
from devstack.postgres_cluster import SUPERUSER
from devstack.postgres_process import PostgresProcess
from tenure.runtime.forks import ForkClient
from tests.support.store_folder import store_folder

Served: TypeAlias = tuple[Path, int]
"""The data directory of the Postgres, and its port."""

# Only what no test is about: `own_postgres` has the settings of `tenure dev`.
POSTGRES_SETTINGS: Final = {
    "max_connections": "600",  # of all workers of the run
    "autovacuum_naptime": "1d",  # a test's database lives for seconds
    # A client that falls silent in its login, such as a cancelled connection attempt whose socket is not collected yet,
    # holds up each drop of a database, in all processes of the run, for so long (1 min by default).
    "authentication_timeout": "10s",
}
REPOSITORY: Final = Path(__file__).parents[2]
SCRAM_ITERATIONS_SINCE: Final = 160_000
_ADDRESS: Final = "tenure_shared_stores"
_POSTGRES: Final = "postgres"
_ETCD: Final = "etcd"
_FORKS: Final = "forks"


class SharedStores:
    """The stores of a run in the process that owns them."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        self._lock = threading.Lock()
        self._started: dict[str, Any] = {}
        self._listener: Listener | None = None

    def get(self, name: str) -> Any:
        """Returns where the store is. Starts it at the first call."""
        with self._lock:
            if name not in self._started:
                starts = {_POSTGRES: self._start_postgres, _ETCD: self._start_etcd, _FORKS: self._start_forks}
                self._started[name] = starts[name]()
            return self._started[name]

    def listen(self) -> str:
        """Answers `ask` in other processes, and returns the address for it."""
        if self._listener is None:
            folder = self._opened.enter_context(store_folder())
            folder.chmod(0o700)
            self._listener = Listener(str(folder / "stores"))
            self._opened.callback(self._listener.close)
            threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()
        address = self._listener.address
        assert isinstance(address, str)
        return address

    def close(self) -> None:
        """Ends the stores."""
        with self._lock:
            self._opened.close()

    def _start_postgres(self) -> Served:
        folder = self._opened.enter_context(store_folder())
        process = PostgresProcess(folder / "data", settings=POSTGRES_SETTINGS)
        self._opened.enter_context(process)
        _shorten_password_check(process)
        return process.cluster.directory, process.port

    def _start_etcd(self) -> EtcdMember:
        process = start_etcd(self._opened.enter_context(store_folder()))
        self._opened.callback(process.stop)
        return process.member

    def _start_forks(self) -> str:
        address = str(self._opened.enter_context(store_folder()) / "forks")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(address)
            listener.listen()
            process = watchdog.launch(
                [sys.executable, "-m", "tests.support.fork_server", str(listener.fileno()), *self._shared],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        self._opened.callback(process.wait)
        self._opened.callback(process.kill)
        return address

    @property
    def _shared(self) -> list[str]:
        """What the server of forks imports because several processes of the run will connect to it."""
        return ["agents"] if self._listener is not None else []

    def _serve(self, listener: Listener) -> None:
        while True:
            with listener.accept() as asking:
                self._answer(asking)

    def _answer(self, asking: Connection) -> None:
        with suppress(EOFError, ConnectionError):  # the worker that asked was killed
            name = asking.recv()
            try:
                asking.send(self.get(name))
            except Exception as error:  # noqa: BLE001  it fails the test that asked
                asking.send(error)


def _shorten_password_check(server: PostgresProcess) -> None:
    """Lets clients hash the password once and not 4,096 times at each connection, where the release can (16)."""
    with psycopg.connect(server.dsn(), autocommit=True) as postgres:
        if postgres.info.server_version < SCRAM_ITERATIONS_SINCE:
            return
        postgres.execute("set scram_iterations = 1")
        statement = sql.SQL("alter role {} password {}")
        postgres.execute(statement.format(sql.Identifier(SUPERUSER), server.cluster.password()))


def ask(address: str, name: str) -> Any:
    """Returns where a store is that another process owns."""
    with Client(address) as stores:
        stores.send(name)
        answer = stores.recv()
    if isinstance(answer, Exception):
        raise answer
    return answer


_STORES: Final = pytest.StashKey[SharedStores]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[_STORES] = SharedStores()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _STORES in config.stash:
        config.stash[_STORES].close()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells a worker of xdist the address."""
    node.workerinput[_ADDRESS] = node.config.stash[_STORES].listen()


def connect_to_forks(config: pytest.Config) -> ForkClient:
    """Returns a server of forks for this process, which all processes of the run share the imports of."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(_find(config, _FORKS))
    return ForkClient(connection)


def _find(config: pytest.Config, name: str) -> Any:
    workerinput = getattr(config, "workerinput", None)
    return config.stash[_STORES].get(name) if workerinput is None else ask(workerinput[_ADDRESS], name)


@pytest.fixture(scope="session")
def shared_postgres(request: pytest.FixtureRequest) -> Served:
    where: Served = _find(request.config, _POSTGRES)
    return where


@pytest.fixture(scope="session")
def shared_etcd(request: pytest.FixtureRequest) -> EtcdMember:
    where: EtcdMember = _find(request.config, _ETCD)
    return where
