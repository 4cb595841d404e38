"""The warm stack of tests: etcd, Postgres, the services and the simulator, started once, without workers.

    with Stack() as tenure:
        task = tenure.submit("Say hello")

The fixture `tenure` shares one among the tests of a process.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tenure.sdk.loop_thread import LoopCalls
from tenure.server_packages import server_packages
from tenure.testing.forks import WorkerForks
from tenure.testing.script import SCRIPTED_MODEL
from tenure.testing.session import Tenure

if TYPE_CHECKING:
    from types import TracebackType

    from devstack.service_process import ServiceProcess

T = TypeVar("T")
_PART: Final = "tenure.testing"
_EXTRA: Final = "testing"
_OPEN_FOLDER: Final = 0o711
DUE_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 0.02

QUICK: Final[Mapping[str, Mapping[str, str]]] = {
    "checkpoint": {"TENURE_CHECKPOINT_SWEEP_INTERVAL_SECONDS": "0.05"},
    "coordinator": {
        "TENURE_COORDINATOR_TTL_SECONDS": "6",
        "TENURE_COORDINATOR_RENEW_INTERVAL_SECONDS": "0.5",
        "TENURE_COORDINATOR_START_TIMEOUT_SECONDS": "6",
        "TENURE_COORDINATOR_RECONNECT_GRACE_SECONDS": "0.2",
        "TENURE_COORDINATOR_RECONCILE_INTERVAL_SECONDS": "1",
    },
    "tools": {"TENURE_TOOLS_RUNNER_TTL_SECONDS": "6", "TENURE_TOOLS_RUNNER_RENEW_INTERVAL_SECONDS": "0.5"},
}
"""Settings with which a stack notices sooner what tests wait for: due times and killed workers.

A life of 6 s, renewed often, outlasts a machine that stands still for 3 s.
"""


class Stack:
    """A stack for tests. `with Stack() as tenure` starts it for one block; the fixture `tenure` shares one.

    tools_config: the tool service's config file with your tools (docs/tools.md). environment: further variables by
    service, as in `{"tools": {…}}`.

    Raises devstack's StackError if it cannot start, and MissingExtra without the extra `testing`.
    """

    def __init__(
        self, *, tools_config: Path | None = None, environment: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        given = environment or {}
        self._environment = {kind: {**QUICK.get(kind, {}), **given.get(kind, {})} for kind in {*QUICK, *given}}
        self._tools_config = tools_config
        self._calls, self._sockets, self._forks = LoopCalls(), itertools.count(1), WorkerForks()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: Tenure | None = None
        self._folder: Path
        self._stack: Any = None

    @property
    def is_running(self) -> bool:
        """Whether the stack was started and not stopped."""
        return self._stack is not None

    def start(self) -> None:
        """Starts all processes and returns when they serve. On Linux they die with this process."""
        with server_packages(_PART, extra=_EXTRA, keep=False):
            import devstack
            import devstack.clock
        self._folder = Path(tempfile.mkdtemp(prefix="tenure-"))
        self._folder.chmod(_OPEN_FOLDER)  # as root Postgres runs under another account
        options = devstack.StackOptions(
            data_dir=self._folder / "data",
            workers=0,
            model=SCRIPTED_MODEL,
            movable_clock=True,
            tools_config=self._tools_config,
            environment=self._environment,
        )
        stack = devstack.Stack(options)
        try:
            self._run(stack.__aenter__)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._stack = stack

    def stop(self) -> None:
        """Stops all processes, and deletes their files. Does nothing if the stack does not run."""
        stack, self._stack = self._stack, None
        if stack is None:
            return
        try:
            self._run(lambda: stack.__aexit__(None, None, None))
        finally:
            self._forks.trim(0)
            if self._loop is not None:
                self._loop.close()
                self._loop = None
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Tenure:
        self.start()
        try:
            self._session = Tenure(self)
        except BaseException:
            self.stop()
            raise
        return self._session

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        session, self._session = self._session, None
        assert session is not None
        try:
            session.close(verify=error is None)
        finally:
            self.stop()

    @contextmanager
    def session(self) -> Iterator[Tenure]:
        """Yields `tenure` for one test. Raises what `Tenure.close` raises."""
        tenure = Tenure(self)
        try:
            yield tenure
        finally:
            tenure.close()

    def restart(self, service: str) -> None:
        """Kills a service (gateway, coordinator, checkpoint, tools) and starts it again; returns when it serves.

        Raises ValueError for another name.
        """
        process = self._service(service)
        process.kill()
        process.start()
        self._calls.run(process.wait_ready)

    def kill(self, service: str) -> None:
        """Kills a service, until `restart`. Raises ValueError for another name."""
        self._service(service).kill()

    def restart_dead(self) -> None:
        """Starts the services again that were killed."""
        for process in self._stack.services.values():
            if process.exit_code is not None and process.module != "services.worker":
                self.restart(process.name)

    def log(self, service: str) -> str:
        """Returns the log of a service since its last start. Raises ValueError for another name."""
        return self._service(service).log()

    def _service(self, name: str) -> ServiceProcess:
        process: ServiceProcess | None = self._stack.services.get(name)
        if process is None:
            raise ValueError(
                f"{name!r} is not a service of the stack; it has {', '.join(sorted(self._stack.services))}"
            )
        return process

    # For Tenure.

    @property
    def address(self) -> str:
        """The address of the gateway."""
        return str(self._stack.gateway_address)

    @property
    def simulator_address(self) -> str:
        """The address of the simulator."""
        return str(self._stack.simulator.address)

    @property
    def records(self) -> Path:
        """The folder of append_record's files, by tenant."""
        folder: Path = self._stack.layout.records
        return folder

    @property
    def workspaces(self) -> Path:
        """The folder of the workspaces, by tenant and task."""
        folder: Path = self._stack.layout.workspaces
        return folder

    @property
    def checker(self) -> SimpleNamespace:
        """The functions of the checker: collect_tasks, read_effects and verify."""
        with server_packages(_PART, extra=_EXTRA, keep=False):
            from checker.collect import collect_tasks, read_effects
            from checker.verify import verify
        return SimpleNamespace(collect_tasks=collect_tasks, read_effects=read_effects, verify=verify)

    def next_socket(self) -> Path:
        """Returns the path of a new Unix socket."""
        return self._folder / f"gate-{next(self._sockets)}"

    def start_worker(self, environment: Mapping[str, str], command: Sequence[str]) -> ServiceProcess:
        """Starts a worker process and does not wait. `command`: a program of the user; empty: `tenure serve worker`."""
        worker: ServiceProcess = self._stack.add_worker(environment, command=command, launch=self._forks.launch)
        return worker

    def remove_worker(self, name: str) -> None:
        """Kills a worker."""
        self._stack.remove_worker(self._stack.services[name])

    def forget_programs(self) -> None:
        """Keeps the imports of the newest programs of workers only. No worker may run."""
        self._forks.trim()

    def set_ahead(self, seconds: float) -> None:
        """Sets how far the clock of the ledger is ahead of the right time."""
        from devstack.clock import set_ahead

        self._calls.run(lambda: set_ahead(self._stack.postgres_dsn, seconds))

    def pass_due_times(self, tenant: str, until: float) -> None:
        """Moves the clock to each due time of the tenant's schedules, and waits until the ledger has decided it.

        `until`: how far the clock may be ahead at most. Raises TimeoutError.
        """
        self._calls.run(lambda: self._pass_due_times(tenant, until))

    async def _pass_due_times(self, tenant: str, until: float) -> None:
        from devstack.clock import next_due, set_ahead

        dsn, last = self._stack.postgres_dsn, float("-inf")
        ends_at = asyncio.get_running_loop().time() + DUE_SECONDS
        while (due := await next_due(dsn, tenant, until)) is not None:
            if due > last:
                last, ends_at = due, asyncio.get_running_loop().time() + DUE_SECONDS
                await set_ahead(dsn, due)
            elif asyncio.get_running_loop().time() > ends_at:
                raise TimeoutError(f"the ledger did not decide a due schedule within {DUE_SECONDS:g} s")
            await asyncio.sleep(LOOK_SECONDS)

    def ledger_time(self) -> datetime:
        """Returns the time of the ledger."""
        from devstack.clock import ledger_time

        return self._calls.run(lambda: ledger_time(self._stack.postgres_dsn))

    def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Runs the start or the stop.

        In the main thread if possible: the kernel lets a child die with the thread that started it.
        """
        if threading.current_thread() is not threading.main_thread() or _is_loop_running():
            return self._calls.run(work)
        if self._loop is None:
            self._loop = asyncio.new_event_loop()

        async def awaited() -> T:
            return await work()

        return self._loop.run_until_complete(awaited())


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
