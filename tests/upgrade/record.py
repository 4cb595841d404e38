"""Records a release for the tests of upgrades: `python -m tests.upgrade.record NAME COMMIT`, as docs/releases.md says.

It writes the statements of its services, its contract and the numbers of its migrations to tests/upgrade/previous.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

from tests.upgrade.previous_release import CONTRACT, RECORD, RELEASE, REPOSITORY, STORES, PreviousRelease

NOT_STATEMENTS = "rights.sql"  # a template of `migrate`


def record(name: str, commit: str) -> None:
    """Replaces the record."""
    full = _git("rev-parse", f"{commit}^{{commit}}").strip()
    release = PreviousRelease(name, full, {})
    shutil.rmtree(RECORD, ignore_errors=True)
    RECORD.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        code = release.unpack(Path(folder))
        for store in STORES:
            sql = code / "services" / store.service / "sql"
            release.migrations[store.schema] = len(list((sql / "migrations").glob("*.sql")))
            (RECORD / store.service).mkdir()
            for file in sql.glob("*.sql"):
                if file.name != NOT_STATEMENTS:
                    shutil.copyfile(file, RECORD / store.service / file.name)
        _describe(code / "protos")
    content = {"name": name, "commit": full, "migrations": release.migrations}
    RELEASE.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _describe(protos: Path) -> None:
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    files = [str(path.relative_to(protos)) for path in sorted(protos.rglob("*.proto"))]
    paths = [f"--proto_path={protos}", f"--proto_path={well_known}"]
    if code := protoc.main(["protoc", *paths, "--include_imports", f"--descriptor_set_out={CONTRACT}", *files]):
        raise SystemExit(code)


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


if __name__ == "__main__":
    record(*sys.argv[1:3])
