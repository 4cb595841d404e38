"""The contract only grows: processes of the previous release and of this one understand each other."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.upgrade.previous_release import CONTRACT, REPOSITORY

BUF = str(Path(sys.executable).with_name("buf"))


def breaking(repository: Path) -> str:
    """What `buf breaking` says of the contract in this folder, against the one of the previous release."""
    command = [str(BUF), "breaking", "--against", str(CONTRACT)]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, cwd=repository, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_no_field_value_or_method_changed_or_went() -> None:
    assert breaking(REPOSITORY) == "", "peers of the previous release do not understand this: add beside it"


def test_a_field_with_another_number_is_noticed(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "protos", tmp_path / "protos")
    shutil.copyfile(REPOSITORY / "buf.yaml", tmp_path / "buf.yaml")
    file = tmp_path / "protos/tenure/v1/task.proto"
    file.write_text(file.read_text().replace("WaitKind kind = 2 ", "WaitKind kind = 99 "))
    assert 'Previously present field "2" with name "kind" on message "Wait" was deleted' in breaking(tmp_path)
