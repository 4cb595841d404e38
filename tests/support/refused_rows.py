"""Makes Postgres refuse rows: a trigger on a table of the ledger that raises an error, or ends the connection."""

from __future__ import annotations

from enum import StrEnum

import psycopg


class Refusal(StrEnum):
    """What the database does with the row. The values are the SQLSTATEs that the client gets."""

    TOO_LONG = "54000"  # as an index row that is too long
    GUARD = "23514"  # as a CHECK or a trigger that refuses it
    CANCELLED = "57014"  # as a statement that is cancelled
    CONNECTION_LOST = "57P01"


async def refuse_rows(dsn: str, table: str, condition: str, refusal: Refusal) -> None:
    """Refuses rows of the table that the condition (over `new`, in SQL) describes."""
    act = f"raise exception 'refused row' using errcode = '{refusal}'"
    if refusal is Refusal.CONNECTION_LOST:
        act = "perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(10)"
    name = f"refused_{table}"
    statement = f"""
        create or replace function ledger.{name}() returns trigger language plpgsql as $$
        begin
          if {condition} then {act}; end if;
          return new;
        end $$;
        create trigger {name} before insert or update on ledger.{table}
          for each row execute function ledger.{name}();
    """
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as postgres:
        await postgres.execute(statement.encode())


async def allow_rows(dsn: str, table: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as postgres:
        await postgres.execute(f"drop trigger refused_{table} on ledger.{table}".encode())
