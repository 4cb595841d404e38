"""The SQL statements and migrations of the model runner."""

from __future__ import annotations

from typing import Final

from tenure.runtime.store.sql import Migrations, Queries

SCHEMA: Final = "models"
QUERIES: Final = Queries.load("services.models")
MIGRATIONS: Final = Migrations.of("services.models", schema=SCHEMA)

# As in the tool service: every statement has its index, and a plan that Postgres made while the tables were small must
# also serve large ones.
SESSION_SETTINGS: Final = (("enable_seqscan", "off"), ("enable_hashjoin", "off"), ("enable_mergejoin", "off"))
