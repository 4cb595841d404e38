"""What a schema demands of those who write to it, read from the catalogs of Postgres."""

from __future__ import annotations

from typing import Any, Final

import psycopg

_COLUMNS: Final = """
select c.relname || '.' || a.attname, format_type(a.atttypid, a.atttypmod),
       a.attnotnull and not a.atthasdef and a.attidentity = '' and a.attgenerated = ''
  from pg_attribute a join pg_class c on c.oid = a.attrelid
 where c.relnamespace = %(schema)s::regnamespace and c.relkind in ('r', 'p') and a.attnum > 0 and not a.attisdropped
"""
_CONSTRAINTS: Final = """
select c.relname || ': ' || k.conname, pg_get_constraintdef(k.oid)
  from pg_constraint k join pg_class c on c.oid = k.conrelid
 where k.connamespace = %(schema)s::regnamespace and k.contype <> 'n' and k.conparentid = 0
"""
_UNIQUE: Final = """
select c.relname || ': ' || i.relname, pg_get_indexdef(i.oid)
  from pg_index x join pg_class i on i.oid = x.indexrelid join pg_class c on c.oid = x.indrelid
 where c.relnamespace = %(schema)s::regnamespace and x.indisunique
"""
_TRIGGERS: Final = """
select c.relname || ': ' || t.tgname, pg_get_triggerdef(t.oid) || E'\\n' || p.prosrc
  from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_proc p on p.oid = t.tgfoid
 where c.relnamespace = %(schema)s::regnamespace and not t.tgisinternal and t.tgparentid = 0
"""
_REFERENCES: Final = """
select t.relname || ': ' || c.relname || '.' || k.conname, k.confdeltype in ('c', 'n', 'd')
  from pg_constraint k join pg_class c on c.oid = k.conrelid join pg_class t on t.oid = k.confrelid
 where k.connamespace = %(schema)s::regnamespace and k.contype = 'f' and k.conparentid = 0
"""
RULES: Final = {"constraint": _CONSTRAINTS, "unique index": _UNIQUE, "trigger": _TRIGGERS}


async def demands(connection: psycopg.AsyncConnection[Any], schema: str) -> dict[str, dict[str, str]]:
    """By kind: the demands by `table: name`, each with its definition."""

    async def rows(statement: str) -> list[tuple[Any, ...]]:
        return await (await connection.execute(statement.encode(), {"schema": schema})).fetchall()

    columns = await rows(_COLUMNS)
    return {
        "column": {name: kind for name, kind, _ in columns},
        "column without default": {name: "not null" for name, _, is_demanded in columns if is_demanded},
        **{kind: dict(await rows(statement)) for kind, statement in RULES.items()},
        "reference": {name: "its deletion fails" for name, is_followed in await rows(_REFERENCES) if not is_followed},
    }


def broken_by(before: dict[str, dict[str, str]], now: dict[str, dict[str, str]]) -> set[str]:
    """What services of before do not know or miss: columns that went or changed, and new demands on their tables."""
    tables = {name.partition(".")[0] for name in before["column"]}
    columns = {f"column {name}" for name, kind in before["column"].items() if now["column"].get(name) != kind}
    demanded = {
        f"{kind} {name}"
        for kind in now
        if kind != "column"
        for name, definition in now[kind].items()
        if before[kind].get(name) != definition and table_of(name) in tables
    }
    return columns | demanded


def table_of(name: str) -> str:
    return name.partition(":")[0].partition(".")[0]
