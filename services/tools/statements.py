"""The SQL statements and migrations of the tool service."""

from __future__ import annotations

from typing import Final

from tenure.runtime.store.sql import Migrations, Queries

SCHEMA: Final = "tools"
QUERIES: Final = Queries.load("services.tools")
RULES: Final = Queries.load("services.tools", "sql/rules.sql")
MIGRATIONS: Final = Migrations.of("services.tools", schema=SCHEMA)


def like(pattern: str) -> str:
    """Returns the pattern of LIKE for a pattern of tools: letters, digits, _ and -, and * for any text."""
    return pattern.replace("_", r"\_").replace("*", "%")


# Every statement has its index. A connection keeps the plan of a statement until the statistics of a table change, so a
# plan that Postgres makes while the tables are small must also serve large ones: no plan may read a table whole. That
# is a sequential scan, and also a hash or merge join over a whole index.
SESSION_SETTINGS: Final = (("enable_seqscan", "off"), ("enable_hashjoin", "off"), ("enable_mergejoin", "off"))
