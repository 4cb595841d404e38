"""Takes away what the database would refuse in the stead of a missing guard: the checker is tried, not Postgres."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg
from psycopg.sql import SQL, Identifier

from tests.fault.mutants.mutation import Mutation


async def lift(ledger_dsn: str, mutations: Iterable[Mutation]) -> None:
    """Drops the constraints and disables the triggers that would stop services without these guards.

    Raises psycopg.errors.UndefinedObject for one that there is not: its name has changed.
    """
    wanted = tuple(mutations)
    constraints = {("tasks", name) for mutation in wanted for name in mutation.constraints}
    constraints |= {("budgets", name) for mutation in wanted for name in mutation.budget_constraints}
    triggers = {name for mutation in wanted for name in mutation.triggers}
    async with await psycopg.AsyncConnection.connect(ledger_dsn, autocommit=True) as postgres:
        for table, name in sorted(constraints):
            drop = SQL("alter table {} drop constraint {}").format(Identifier("ledger", table), Identifier(name))
            await postgres.execute(drop)
        for name in sorted(triggers):
            await postgres.execute(SQL("alter table ledger.tasks disable trigger {}").format(Identifier(name)))
