"""The clock of the ledger in a test stack: a schema whose functions come before those of Postgres.

    await install_clock(dsn)             # before the checkpoint service starts, with CLOCK_SCHEMA as its clock_schema
    await shift_defaults(dsn)            # after it has migrated
    await set_ahead(dsn, 7200)

The functions add what one row says to Postgres's own time. All statements of the ledger take the time from them; the
defaults of columns were made before, so they are made again. Postgres's clock itself, and with it every other schema,
stays right. `CURRENT_TIMESTAMP` is a keyword that no function replaces: the ledger does not use it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import psycopg

CLOCK_SCHEMA: Final = "test_clock"

_FUNCTION: Final = """
create or replace function {schema}.{name}() returns timestamptz language sql {kind} parallel safe
as 'select pg_catalog.{name}() + (select ahead from {schema}.clock)';
"""
_FUNCTIONS: Final = {
    "now": "stable",
    "transaction_timestamp": "stable",
    "statement_timestamp": "stable",
    "clock_timestamp": "volatile",
}
_INSTALL: Final = """
create schema if not exists {schema};
create table if not exists {schema}.clock (ahead interval not null);
truncate {schema}.clock;
insert into {schema}.clock values ('0');
"""
_NEXT_DUE: Final = """
select extract(epoch from min(next_due_at) - clock_timestamp())::float8 from ledger.schedules
 where tenant = %(tenant)s and not paused and next_due_at <= clock_timestamp() + make_interval(secs => %(until)s)
"""
_SHIFT_DEFAULTS: Final = """
do $$
declare
  given record;
begin
  for given in
    select d.adrelid::regclass as owner, a.attname as name, pg_get_expr(d.adbin, d.adrelid) as expression
      from pg_attrdef d
      join pg_class c on c.oid = d.adrelid
      join pg_attribute a on a.attrelid = d.adrelid and a.attnum = d.adnum
     where c.relnamespace = 'ledger'::regnamespace
       and pg_get_expr(d.adbin, d.adrelid) in ('now()', 'clock_timestamp()')
  loop
    execute format('alter table %s alter column %I set default {schema}.%s', given.owner, given.name, given.expression);
  end loop;
end $$;
"""


async def install_clock(dsn: str) -> None:
    """Creates the schema, with the right time. Raises psycopg.Error."""
    functions = (_FUNCTION.format(schema=CLOCK_SCHEMA, name=name, kind=kind) for name, kind in _FUNCTIONS.items())
    await _run(dsn, _INSTALL.format(schema=CLOCK_SCHEMA), *functions)


async def shift_defaults(dsn: str) -> None:
    """Lets the defaults of the ledger's columns take the time from the schema. Raises psycopg.Error."""
    await _run(dsn, _SHIFT_DEFAULTS.format(schema=CLOCK_SCHEMA))


async def set_ahead(dsn: str, seconds: float) -> None:
    """Sets how many seconds the ledger's clock is ahead of the right time, from now on. Raises psycopg.Error."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as postgres:
        await postgres.execute("update test_clock.clock set ahead = make_interval(secs => %s)", [seconds])


async def next_due(dsn: str, tenant: str, until: float) -> float | None:
    """Returns how far the clock must be ahead for the tenant's next due schedule, if at most `until`; else None.

    A schedule that is due by now is one of them. Raises psycopg.Error.
    """
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as postgres:
        row = await (await postgres.execute(_NEXT_DUE, {"tenant": tenant, "until": until})).fetchone()
    assert row is not None
    seconds: float | None = row[0]
    return seconds


async def ledger_time(dsn: str) -> datetime:
    """Returns the time of the ledger. Raises psycopg.Error."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as postgres:
        row = await (await postgres.execute("select test_clock.clock_timestamp()")).fetchone()
    assert row is not None
    moment: datetime = row[0]
    return moment


async def _run(dsn: str, *statements: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as postgres:
        for statement in statements:
            await postgres.execute(statement.encode())
