"""Rules of migrations that need no earlier release."""

from __future__ import annotations

import re
from typing import Final

import pytest

from services.checkpoint.queries import MIGRATIONS as LEDGER
from services.models.statements import MIGRATIONS as MODELS
from services.tools.statements import MIGRATIONS as TOOLS
from tenure.runtime.store.sql import Migration

BUILD: Final = "create index concurrently by_state on tasks (state)"
DROP: Final = "drop index concurrently if exists by_state"
VALIDATE: Final = "alter table tasks validate constraint small"


def unrepeatable(file: Migration) -> list[str]:
    """The statements outside a transaction that cannot run again.

    A build of an index that fails leaves an invalid one, which the repeat must drop first.
    """
    dropped: set[str] = set()
    faults = []
    for statement in file.statements if file.is_outside else ():
        words = statement.lower().split()
        if words[:5] == ["drop", "index", "concurrently", "if", "exists"]:
            dropped.add(words[5])
        elif words[:3] == ["create", "index", "concurrently"] and words[3] in dropped:
            continue
        elif not re.match(r"alter table \S+ validate constraint", statement.lower()):
            faults.append(statement)
    return faults


def test_statements_outside_a_transaction_are_repeatable() -> None:
    files = [file for migrations in (LEDGER, TOOLS, MODELS) for file in migrations.files]
    assert files
    assert {file.name: unrepeatable(file) for file in files if unrepeatable(file)} == {}


@pytest.mark.parametrize(
    ("statements", "faults"),
    [
        ([DROP, BUILD], []),
        ([DROP, BUILD, VALIDATE], []),
        ([BUILD], [BUILD]),
        ([BUILD, DROP], [BUILD]),
        (["update tasks set state = ''"], ["update tasks set state = ''"]),
    ],
)
def test_unrepeatable_statements_are_found(statements: list[str], faults: list[str]) -> None:
    text = "-- outside a transaction\n" + "".join(f"{one};\n" for one in statements)
    assert unrepeatable(Migration(2, "0002_next.sql", text)) == faults
