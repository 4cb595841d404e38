"""The statements and tables of the tool service."""

from __future__ import annotations

from typing import Final

from tenure.runtime.migrations import Migrations
from tenure.runtime.queries import Queries

SCHEMA: Final = "tools"
QUERIES: Final = Queries.load("services.tools")
MIGRATIONS: Final = Migrations.of("services.tools", schema=SCHEMA)
