"""The previous release: what is recorded of it beside this file, and its own code where the history of git has it.

`python -m tests.upgrade.record` writes the record. A shallow clone has the record too, but no code of before.
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.checkpoint.queries import MIGRATIONS as LEDGER_MIGRATIONS
from services.checkpoint.queries import SCHEMA as LEDGER
from services.checkpoint.queries import SESSION_SETTINGS as LEDGER_SETTINGS
from services.tools.statements import MIGRATIONS as TOOLS_MIGRATIONS
from services.tools.statements import SCHEMA as TOOLS
from services.tools.statements import SESSION_SETTINGS as TOOLS_SETTINGS
from tenure.runtime.sql import Migration, Migrations, Queries

REPOSITORY: Final = Path(__file__).parents[2]
RECORD: Final = Path(__file__).with_name("previous")
CONTRACT: Final = RECORD / "contract.binpb"
RELEASE: Final = RECORD / "release.json"
CODE: Final = ("tenure", "services", "devstack", "checker", "protos")
"""The folders that its processes need."""


@dataclass(frozen=True, slots=True)
class PreviousRelease:
    """`migrations`: the number of the newest one by schema."""

    name: str
    commit: str
    migrations: dict[str, int]

    @property
    def is_in_history(self) -> bool:
        """Whether this clone has its code."""
        done = subprocess.run(
            ["git", "-C", str(REPOSITORY), "cat-file", "-e", f"{self.commit}^{{commit}}"],
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    def unpack(self, folder: Path) -> Path:
        """Writes its code into the folder."""
        command = ["git", "-C", str(REPOSITORY), "archive", "--format=tar", self.commit, *CODE]
        archive = subprocess.run(command, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        return folder


def previous_release() -> PreviousRelease:
    return PreviousRelease(**json.loads(RELEASE.read_text(encoding="utf-8")))


@dataclass(frozen=True, slots=True)
class Store:
    """A schema with its migrations of now, and the settings of the connections of its service."""

    service: str
    schema: str
    migrations: Migrations
    settings: tuple[tuple[str, str], ...]

    @property
    def before(self) -> Migrations:
        """The migrations that the previous release knows. A migration never changes, so these are the ones of now."""
        number = previous_release().migrations[self.schema]
        return Migrations(self.schema, self.migrations.files[:number])

    @property
    def newer(self) -> tuple[Migration, ...]:
        """The migrations that the previous release does not know."""
        return self.migrations.files[previous_release().migrations[self.schema] :]

    def statements_of_before(self) -> dict[str, str]:
        """The statements of the previous release's service, by file and name."""
        statements = {}
        for file in sorted((RECORD / self.service).glob("*.sql")):
            queries = Queries(file.read_text(encoding="utf-8"), str(file))
            statements |= {f"{file.name}: {name}": getattr(queries, name).decode() for name in queries}
        return statements


STORES: Final = (
    Store("checkpoint", LEDGER, LEDGER_MIGRATIONS, LEDGER_SETTINGS),
    Store("tools", TOOLS, TOOLS_MIGRATIONS, TOOLS_SETTINGS),
)
