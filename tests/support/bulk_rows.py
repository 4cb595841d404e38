"""Databases with many rows: what one real task left behind, multiplied by the database itself.

Triggers are off meanwhile, so that rows come in as fast as a restore brings them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import sql

NEW_TASK = "md5(number::text)::uuid"
"""The id of a copy, in terms of its number."""


async def multiply(
    connection: psycopg.AsyncConnection[Any], table: str, copies: int, changed: Mapping[str, str], where: str = "true"
) -> None:
    """Copies each row of a table that `where` holds of; `changed`: SQL for the columns that differ, by `number`."""
    rows = await (
        await connection.execute(
            "select column_name from information_schema.columns"
            " where table_schema = current_schema() and table_name = %s"
            " and is_identity = 'NO' and is_generated = 'NEVER' order by ordinal_position",
            (table,),
        )
    ).fetchall()
    names = [name for (name,) in rows]
    values = [_sql(changed[name]) if name in changed else sql.Identifier("old", name) for name in names]
    statement = sql.SQL(
        "insert into {table} ({names}) select {values}"
        " from {table} old, generate_series(1, {copies}) as number where {where}"
    ).format(
        table=sql.Identifier(table),
        names=sql.SQL(", ").join(map(sql.Identifier, names)),
        values=sql.SQL(", ").join(values),
        copies=sql.Literal(copies),
        where=_sql(where),
    )
    await connection.execute("set session_replication_role = replica")
    await connection.execute(statement)
    await connection.execute("reset session_replication_role")


def _sql(text: str) -> sql.SQL:
    """Returns SQL that the caller wrote itself; it is not escaped."""
    return sql.SQL(text)


async def scans_in_plan(connection: psycopg.AsyncConnection[Any], statement: bytes) -> set[str]:
    """The tables that a statement reads whole, whatever it is given: by the generic plan, which services use."""
    nodes = await generic_plan(connection, statement)
    return {node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"}


async def unkeyed_scans_in_plan(connection: psycopg.AsyncConnection[Any], statement: bytes) -> set[str]:
    """The tables that a statement reads whole, or through an index of which it reads every entry."""
    nodes = await generic_plan(connection, statement)
    return {node["Relation Name"] for node in nodes if "Relation Name" in node and _reads_all(node)}


def _reads_all(node: dict[str, Any]) -> bool:
    kind = node["Node Type"]
    return kind == "Seq Scan" or (kind in {"Index Scan", "Index Only Scan"} and "Index Cond" not in node)


async def generic_plan(connection: psycopg.AsyncConnection[Any], statement: bytes) -> list[dict[str, Any]]:
    """Returns the nodes of the plan that Postgres makes without knowing the parameters."""
    numbered, names = statement.decode(), []
    while (begin := numbered.find("%(")) >= 0:
        end = numbered.index(")", begin)
        name = numbered[begin + 2 : end]
        names += [] if name in names else [name]
        numbered = f"{numbered[:begin]}${names.index(name) + 1}{numbered[end + 2 :]}"
    cursor = await connection.execute(f"explain (generic_plan, format json) {numbered.replace('%%', '%')}".encode())
    row = await cursor.fetchone()
    assert row is not None, "a plan is one row"
    return _nodes(row[0][0]["Plan"])


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for inner in plan.get("Plans", ()) for node in _nodes(inner))]
