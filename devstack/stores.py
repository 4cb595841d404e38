"""Postgres and etcd for the stack: embedded, or those that the options name."""

from __future__ import annotations

import asyncio
import http.client
import json
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql

from devstack.child_process import StackError, last_words
from devstack.etcd import EtcdMissingError, EtcdProcess, EtcdStartError, etcd_version, running_etcd
from devstack.options import Layout, StackOptions
from devstack.postgres_cluster import EmbeddedPostgresError
from devstack.postgres_process import PostgresProcess

# The Postgres of the stack, as a client sees it.

CONNECT_SECONDS = 60


async def ensure_database(server_dsn: str, name: str) -> None:
    """Makes the database when it is not there yet."""
    async with await psycopg.AsyncConnection.connect(
        server_dsn, autocommit=True, connect_timeout=CONNECT_SECONDS
    ) as postgres:
        existing = await postgres.execute("select 1 from pg_database where datname = %s", [name])
        if await existing.fetchone() is None:
            await postgres.execute(sql.SQL("create database {}").format(sql.Identifier(name)))


async def server_version(dsn: str) -> str:
    """Such as `17.2`. Raises StackError when nothing useful answers."""
    try:
        async with await psycopg.AsyncConnection.connect(dsn, connect_timeout=CONNECT_SECONDS) as postgres:
            return str(postgres.info.parameter_status("server_version") or "?").split(" ", maxsplit=1)[0]
    except psycopg.Error as error:
        reason = " ".join(str(error).split())
        raise StackError(f"the Postgres that --postgres names does not take us in: {reason}") from error


# An etcd that is not ours: is it there, and which one is it?

ANSWER_SECONDS = 5.0


async def endpoint_version(endpoints: str) -> str:
    """The release of the first endpoint, such as `3.5.16`. Raises StackError when it does not answer as an etcd."""
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
    """One of the two. `where` is what its clients dial; `version` is the release's."""

    where: str
    version: str
    embedded: bool


async def open_postgres(
    options: StackOptions, layout: Layout, opened: AsyncExitStack
) -> tuple[Store, PostgresProcess | None]:
    """Ready to be migrated. Raises StackError."""
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
    """Answering reads. Raises StackError."""
    if options.etcd_endpoints:
        return Store(options.etcd_endpoints, await endpoint_version(options.etcd_endpoints), embedded=False), None
    try:
        version = await asyncio.to_thread(etcd_version, options.etcd_binary)
        process = await opened.enter_async_context(running_etcd(layout.etcd, binary=options.etcd_binary))
    except (EtcdMissingError, EtcdStartError, OSError) as error:
        raise _failed("etcd", error) from error
    return Store(process.endpoint, version, embedded=True), process


def _failed(what: str, error: Exception) -> StackError:
    """The first line is the sentence; what follows it is the end of a log, and goes along as a note."""
    sentence, _, rest = str(error).partition("\n")
    message = last_words(rest)
    stack_error = StackError(
        f"the embedded {what} does not start: {sentence.strip().rstrip(':')}{f' ({message})' if message else ''}"
    )
    if rest:
        stack_error.add_note(rest)
    return stack_error
