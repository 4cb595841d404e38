"""Checks that this machine has the programs of the stack, before the stack creates or starts anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from devstack.child_process import StackError
from devstack.etcd import EtcdMissingError, etcd_version
from devstack.options import Layout, StackOptions
from devstack.postgres_cluster import EmbeddedPostgresError, PostgresCluster, find_postgres_binaries

_ERRORS: Final = (EmbeddedPostgresError, EtcdMissingError, OSError)


def check_programs(options: StackOptions, layout: Layout) -> None:
    """Runs the programs with `--version` only.

    Raises StackError with the list of programs that are missing or do not fit the data folder.
    """

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
