"""Takes away what the database would refuse in the stead of a missing guard: the checker is tried, not Postgres."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg
from psycopg.sql import SQL, Identifier

from tests.fault.mutants.mutation import Mutation


async def lift(ledger_dsn: str, mutations: Iterable[Mutation]) -> None:
    """Disables the triggers that would stop services without these guards.

    Raises psycopg.errors.UndefinedObject for one that there is not: its name has changed.
    """
    wanted = tuple(mutations)
    triggers = {("tasks", name) for mutation in wanted for name in mutation.triggers}
    triggers |= {("budgets", name) for mutation in wanted for name in mutation.budget_triggers}
    async with await psycopg.AsyncConnection.connect(ledger_dsn, autocommit=True) as postgres:
        for table, name in sorted(triggers):
            disable = SQL("alter table {} disable trigger {}").format(Identifier("ledger", table), Identifier(name))
            await postgres.execute(disable)
