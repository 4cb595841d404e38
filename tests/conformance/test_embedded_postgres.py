"""What the embedded Postgres promises, against the real server."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from devstack.postgres_cluster import DataDirectoryRefused, PostgresMissing, PostgresStartFailed, account_for
from devstack.postgres_process import PostgresProcess
from tests.support.patience import PATIENCE_SECONDS

REPOSITORY = Path(__file__).parents[2]
AS_ROOT = os.geteuid() == 0

START_AND_SAY_WHO = """
import sys
from pathlib import Path
from devstack.postgres_process import PostgresProcess
postgres = PostgresProcess(Path(sys.argv[1])).start()
print(postgres.pid, postgres.dsn(), flush=True)
sys.stdin.read()
postgres.stop()
"""


@pytest.fixture
def data_directory(tmp_path: Path) -> Any:
    # A parent that only we may enter, as a home directory is: for root the hard case.
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    return closed / "postgres"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresProcess]:
    """A server for the tests that only ask it."""
    with PostgresProcess(tmp_path_factory.mktemp("running") / "postgres") as process:
        yield process


@pytest.fixture
def postgres(data_directory: Any) -> Iterator[Any]:
    with PostgresProcess(data_directory) as process:
        yield process


def query(postgres: Any, statement: Any, *parameters: Any) -> Any:
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        cursor = connection.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


def start_elsewhere(directory: Any, account: Any = None) -> Any:
    command = [sys.executable, "-c", START_AND_SAY_WHO, str(directory)]
    return subprocess.Popen(
        account.command(command) if account else command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        **(account.popen_options if account else {}),
    )


def guard_of(pid: int) -> int:
    """The process that ends what `pid` started."""
    listed = subprocess.run(["pgrep", "-P", str(pid), "-f", "devstack/watchdog.py"], capture_output=True, check=True)
    return int(listed.stdout)


@pytest.mark.nightly
def test_the_server_is_durable_and_listens_on_loopback_only(running: PostgresProcess) -> None:
    wanted = {"fsync": "on", "synchronous_commit": "on", "listen_addresses": "127.0.0.1", "max_wal_size": "4GB"}
    values = dict(query(running, "select name, current_setting(name) from pg_settings where name = any(%s)", [*wanted]))
    assert values == wanted
    assert query(running, "show server_version") == [(running.version,)]


def test_the_server_never_runs_as_root(running: PostgresProcess) -> None:
    # /proc/<pid> of a process that changed its uid belongs to root; its status tells the truth.
    status = Path(f"/proc/{running.pid}/status")
    if not status.exists():
        pytest.skip("no /proc here")
    uids = next(line for line in status.read_text().splitlines() if line.startswith("Uid:")).split()[1:]
    assert "0" not in uids


def test_a_wrong_password_is_refused(running: PostgresProcess) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(running.dsn(), password="guessed")


def test_committed_rows_survive_a_kill_and_the_address_stays(postgres: Any) -> None:
    query(postgres, "create table facts (id int)")
    query(postgres, "insert into facts select generate_series(1, 1000)")
    before = postgres.dsn()
    postgres.kill()
    assert postgres.pid is None
    postgres.start()
    assert postgres.dsn() == before
    assert query(postgres, "select count(*) from facts") == [(1000,)]


@pytest.mark.faults
def test_a_kill_from_outside_is_noticed_and_start_recovers(postgres: Any) -> None:
    query(postgres, "create table facts (id int)")
    os.kill(postgres.pid, signal.SIGKILL)
    while postgres.pid is not None:
        os.sched_yield()
    postgres.start()
    assert query(postgres, "select count(*) from facts") == [(0,)]


@pytest.mark.faults
def test_a_directory_in_use_is_refused_and_its_server_untouched(postgres: Any, data_directory: Any) -> None:
    with pytest.raises(DataDirectoryRefused, match="Another process"):
        PostgresProcess(data_directory).start()
    assert query(postgres, "select 1") == [(1,)]


def test_a_server_ends_with_the_process_that_started_it(data_directory: Any) -> None:
    with start_elsewhere(data_directory) as parent:
        pid = int(parent.stdout.readline().split()[0])
        sockets = Path((data_directory / "postmaster.pid").read_text().splitlines()[4])
        assert sockets.is_dir()
        server, guard = os.pidfd_open(pid), os.pidfd_open(guard_of(parent.pid))
        parent.kill()
    # A process's descriptor becomes readable when it ends.
    assert select.select([server], [], [], PATIENCE_SECONDS)[0]
    assert select.select([guard], [], [], PATIENCE_SECONDS)[0]
    assert not sockets.exists()
    assert not (data_directory / "postmaster.pid").exists()  # it was shut down, not killed


@pytest.mark.nightly
def test_the_next_start_ends_a_server_that_no_guard_ended(data_directory: Any) -> None:
    with start_elsewhere(data_directory) as parent:
        orphan_pid, orphan_dsn = parent.stdout.readline().split()
        os.kill(guard_of(parent.pid), signal.SIGKILL)
        parent.kill()
    psycopg.connect(orphan_dsn).close()  # it outlived its parent and the guard
    sockets = Path((data_directory / "postmaster.pid").read_text().splitlines()[4])
    assert sockets.is_dir()
    with PostgresProcess(data_directory) as postgres:
        assert postgres.pid != int(orphan_pid)
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(orphan_dsn)
        assert not sockets.exists()


@pytest.mark.faults
def test_a_stale_pid_file_does_not_block_the_start(data_directory: Any) -> None:
    process = PostgresProcess(data_directory).start()
    text = (data_directory / "postmaster.pid").read_text()
    own_pid = process.pid
    process.kill()
    (data_directory / "postmaster.pid").write_text(text.replace(str(own_pid), str(os.getpid()), 1))
    with process:
        assert query(process, "select 1") == [(1,)]


@pytest.mark.nightly
def test_a_taken_port_fails_the_start_with_the_servers_message(data_directory: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        process = PostgresProcess(data_directory, port=holder.getsockname()[1])
        with pytest.raises(PostgresStartFailed, match="Address already in use"):
            process.start()
    assert process.pid is None


def test_a_foreign_folder_is_never_overwritten(data_directory: Any) -> None:
    data_directory.mkdir()
    (data_directory / "thesis.txt").write_text("years of work")
    with pytest.raises(DataDirectoryRefused, match="not a PostgreSQL cluster"):
        PostgresProcess(data_directory).start()
    assert (data_directory / "thesis.txt").read_text() == "years of work"


@pytest.mark.nightly
def test_data_of_another_version_is_refused(data_directory: Any) -> None:
    process = PostgresProcess(data_directory).start()
    process.stop()
    (data_directory / "PG_VERSION").write_text("13\n")
    with pytest.raises(DataDirectoryRefused, match="created by PostgreSQL 13"):
        process.start()


@pytest.mark.faults
def test_an_interrupted_initialization_is_begun_again(data_directory: Any) -> None:
    unfinished = data_directory.with_name(data_directory.name + ".initializing")
    unfinished.mkdir()
    (unfinished / "PG_VERSION").write_text("18\n")
    with PostgresProcess(data_directory) as postgres:
        assert query(postgres, "select 1") == [(1,)]
    assert not unfinished.exists()


def test_missing_binaries_are_named(tmp_path: Path) -> None:
    with pytest.raises(PostgresMissing, match="has no postgres, initdb, psql"):
        PostgresProcess(tmp_path / "data", binaries_directory=tmp_path)


@pytest.mark.faults
def test_stop_may_be_repeated_and_leaves_no_process(data_directory: Any) -> None:
    process = PostgresProcess(data_directory).start()
    pid = process.pid
    assert pid is not None
    process.stop()
    process.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.faults
async def test_a_cancelled_start_leaves_nothing_running(data_directory: Any) -> None:
    process = PostgresProcess(data_directory)
    starting = asyncio.create_task(process.start_async())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert process.pid is None
    async with process as again:
        assert query(again, "select 1") == [(1,)]


@pytest.mark.faults
def test_an_ordinary_user_can_run_it() -> None:
    directory = Path(tempfile.mkdtemp(prefix="tenure-test-", dir="/tmp"))
    try:
        account = account_for([directory.parent, REPOSITORY, Path(sys.executable).resolve().parent])
        account.own(directory)
        with start_elsewhere(directory / "postgres", account) as parent:
            _, dsn = parent.stdout.readline().split()
            with psycopg.connect(dsn) as connection:
                assert connection.execute("select 1").fetchone() == (1,)
            parent.stdin.close()
            assert parent.wait(timeout=PATIENCE_SECONDS) == 0
    finally:
        shutil.rmtree(directory)


@pytest.mark.nightly
@pytest.mark.skipif(not AS_ROOT, reason="only root lends an account")
def test_root_keeps_its_directories_closed(data_directory: Any) -> None:
    with PostgresProcess(data_directory) as postgres:
        assert query(postgres, "select 1") == [(1,)]
    assert data_directory.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(not AS_ROOT, reason="only root lends an account")
def test_root_lends_no_capability_that_the_account_does_not_need() -> None:
    assert account_for([Path("/usr"), Path("/tmp")]).prefix == ()
