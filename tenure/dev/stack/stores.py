"""Postgres and etcd for the stack: embedded, or those that the options name."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import psycopg

from tenure.dev.etcd_binary import EtcdMissingError, etcd_version
from tenure.dev.etcd_process import EtcdProcess, EtcdStartError
from tenure.dev.etcd_start import running_etcd
from tenure.dev.postgres_errors import EmbeddedPostgresError
from tenure.dev.postgres_process import PostgresProcess
from tenure.dev.stack.database import ensure_database, server_version
from tenure.dev.stack.errors import StackError
from tenure.dev.stack.etcd_endpoint import endpoint_version
from tenure.dev.stack.last_words import last_words
from tenure.dev.stack.layout import Layout
from tenure.dev.stack.options import StackOptions

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
    words = last_words(rest)
    told = StackError(
        f"the embedded {what} does not start: {sentence.strip().rstrip(':')}{f' ({words})' if words else ''}"
    )
    if rest:
        told.add_note(rest)
    return told
