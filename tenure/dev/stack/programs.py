"""Whether this machine has the programs that the stack will run, looked at before anything is made or started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tenure.dev.etcd_binary import EtcdMissingError, etcd_version
from tenure.dev.postgres_binaries import find_postgres_binaries
from tenure.dev.postgres_cluster import PostgresCluster
from tenure.dev.postgres_errors import EmbeddedPostgresError
from tenure.dev.stack.errors import StackError
from tenure.dev.stack.layout import Layout
from tenure.dev.stack.options import StackOptions

_ERRORS: Final = (EmbeddedPostgresError, EtcdMissingError, OSError)


def check_programs(options: StackOptions, layout: Layout) -> None:
    """Runs nothing but `--version`. Raises StackError with all that is missing, or does not fit the data folder."""

    def check_postgres() -> None:
        PostgresCluster(layout.postgres, find_postgres_binaries(options.postgres_binaries)).check_version()

    def check_etcd() -> None:
        etcd_version(options.etcd_binary)

    checks: list[Callable[[], None]] = []
    checks += [check_postgres] if not options.postgres_dsn else []
    checks += [check_etcd] if not options.etcd_endpoints else []
    problems = [problem for check in checks if (problem := _problem(check))]
    if problems:
        raise StackError(f"nothing is started: {'; '.join(problems)}")


def _problem(check: Callable[[], None]) -> str:
    try:
        check()
    except _ERRORS as error:
        return str(error).strip().rstrip(".")
    return ""
