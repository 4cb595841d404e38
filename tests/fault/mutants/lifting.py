"""Takes away what the database would refuse in the stead of a missing guard: the checker is tried, not Postgres."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg
from psycopg.sql import SQL, Identifier

from tests.fault.mutants.mutation import Mutation

SCHEMAS = {"checkpoint": "ledger", "tools": "tools"}
"""By service, the schema of its tables."""


async def lift(dsn: str, mutations: Iterable[Mutation]) -> None:
    """Disables the triggers of this database that would stop services without these guards.

    Raises psycopg.errors.UndefinedObject for one that there is not: its name has changed.
    """
    triggers = {
        (SCHEMAS[mutation.service], *trigger.split(".")) for mutation in mutations for trigger in mutation.triggers
    }
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as postgres:
        for schema, table, name in sorted(triggers):
            disable = SQL("alter table {} disable trigger {}").format(Identifier(schema, table), Identifier(name))
            await postgres.execute(disable)
