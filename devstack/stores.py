"""Opens the stores of a stack: embedded Postgres and etcd, or those that the options name."""

from __future__ import annotations

import asyncio
import http.client
import json
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from devstack.child_process import StackError, last_output
from devstack.etcd import EtcdMissingError, EtcdProcess, EtcdStartError, etcd_version, running_etcd
from devstack.options import Layout, StackOptions
from devstack.postgres_cluster import EmbeddedPostgresError
from devstack.postgres_process import PostgresProcess

# Postgres, through its clients' interface.

CONNECT_SECONDS = 60


async def ensure_database(server_dsn: str, name: str) -> None:
    """Creates the database if it does not exist."""
    async with await psycopg.AsyncConnection.connect(
        server_dsn, autocommit=True, connect_timeout=CONNECT_SECONDS
    ) as postgres:
        existing = await postgres.execute("select 1 from pg_database where datname = %s", [name])
        if await existing.fetchone() is None:
            await postgres.execute(sql.SQL("create database {}").format(sql.Identifier(name)))


def has_password(dsn: str) -> bool:
    """Returns whether a DSN, as URL or as settings, has a password. False for a text that is not a DSN."""
    try:
        return "password" in conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        return False


async def server_version(dsn: str) -> str:
    """Returns the server's version, such as `17.2`. Raises StackError if the server cannot be used."""
    try:
        async with await psycopg.AsyncConnection.connect(dsn, connect_timeout=CONNECT_SECONDS) as postgres:
            return str(postgres.info.parameter_status("server_version") or "?").split(" ", maxsplit=1)[0]
    except psycopg.Error as error:
        reason = " ".join(str(error).split())
        raise StackError(f"cannot connect to the Postgres that --postgres names: {reason}") from error


# The version of an etcd that the options name.

ANSWER_SECONDS = 5.0


async def endpoint_version(endpoints: str) -> str:
    """Returns the release of the first endpoint, such as `3.5.16`. Raises StackError if no etcd answers there."""
    first = endpoints.split(",", maxsplit=1)[0].strip()
    try:
        return await asyncio.to_thread(_ask, first)
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise StackError(f"no etcd answers at {first}, which --etcd names: {reason}") from error


def _ask(endpoint: str) -> str:
    connection = http.client.HTTPConnection(endpoint, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", "/version")
        return str(json.loads(connection.getresponse().read())["etcdserver"])
    finally:
        connection.close()


DATABASE: Final = "tenure"


@dataclass(frozen=True, slots=True)
class Store:
    """Postgres or etcd. `where`: the DSN or the endpoints for clients. `version`: the release."""

    where: str
    version: str
    embedded: bool


async def open_postgres(
    options: StackOptions, layout: Layout, opened: AsyncExitStack
) -> tuple[Store, PostgresProcess | None]:
    """Returns a Postgres with the stack's database, and its process if it is embedded. Raises StackError."""
    if options.postgres_dsn:
        return Store(options.postgres_dsn, await server_version(options.postgres_dsn), embedded=False), None
    try:
        process = PostgresProcess(layout.postgres, binaries_directory=options.postgres_binaries)
        await opened.enter_async_context(process)
        await ensure_database(process.dsn(), DATABASE)
    except (EmbeddedPostgresError, psycopg.Error, OSError) as error:
        raise _failed("Postgres", error) from error
    return Store(process.dsn(DATABASE), process.version, embedded=True), process


async def open_etcd(options: StackOptions, layout: Layout, opened: AsyncExitStack) -> tuple[Store, EtcdProcess | None]:
    """Returns an etcd that answers reads, and its process if it is embedded. Raises StackError."""
    if options.etcd_endpoints:
        return Store(options.etcd_endpoints, await endpoint_version(options.etcd_endpoints), embedded=False), None
    try:
        version = await asyncio.to_thread(etcd_version, options.etcd_binary)
        process = await opened.enter_async_context(running_etcd(layout.etcd, binary=options.etcd_binary))
    except (EtcdMissingError, EtcdStartError, OSError) as error:
        raise _failed("etcd", error) from error
    return Store(process.endpoint, version, embedded=True), process


def _failed(what: str, error: Exception) -> StackError:
    """Returns the StackError for an embedded store.

    The first line of the error is its message. The following lines are the end of a log and become a note.
    """
    sentence, _, rest = str(error).partition("\n")
    log_line = last_output(rest)
    stack_error = StackError(
        f"the embedded {what} does not start: {sentence.strip().rstrip(':')}{f' ({log_line})' if log_line else ''}"
    )
    if rest:
        stack_error.add_note(rest)
    return stack_error
