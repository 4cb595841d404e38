"""The statements and tables of the tool service."""

from __future__ import annotations

from typing import Final

from tenure.runtime.sql import Migrations, Queries

SCHEMA: Final = "tools"
QUERIES: Final = Queries.load("services.tools")
MIGRATIONS: Final = Migrations.of("services.tools", schema=SCHEMA)

# Every statement has its index. Plans are made once, while tables may still be empty, where a scan looks cheap.
SESSION_SETTINGS: Final = (("enable_seqscan", "off"),)
