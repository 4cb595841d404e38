"""The SQL statements and migrations of the tool service."""

from __future__ import annotations

from typing import Final

from tenure.runtime.sql import Migrations, Queries

SCHEMA: Final = "tools"
QUERIES: Final = Queries.load("services.tools")
MIGRATIONS: Final = Migrations.of("services.tools", schema=SCHEMA)

# Every statement has its index. Postgres may plan a prepared statement while the tables are still empty, when a
# sequential scan looks cheap, and keep that plan.
SESSION_SETTINGS: Final = (("enable_seqscan", "off"),)
