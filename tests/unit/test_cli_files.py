"""Commands that write files: what they say where they cannot, and what they leave behind."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tenure.cli.api_keys import write_secret
from tenure.cli.export import _replaced
from tenure.cli.main import cli
from tenure.client import files
from tenure.domain.errors import PermissionDenied
from tenure.v1 import api_key_service_pb2 as pb
from tests.unit.stubbed_calls import answer_calls

TASK = "0193f2a1-4c1b-7000-8000-000000000000"
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="/proc takes no new files, not even root's")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["--address", "127.0.0.1:1", *arguments])


@needs_proc
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"files get {TASK} a.txt -o /proc/self/a.txt", "/proc/self/a.txt cannot be written"),
        ("keys create /proc/self/keys", "/proc/self/keys"),
        ("keys api create ci --permission read --output /proc/self/ci.key", "no key was created"),
    ],
)
def test_a_folder_that_takes_no_file_is_an_error(command: str, message: str) -> None:
    ended = run(*command.split())
    assert ended.exit_code == 1
    assert message in ended.stderr


def test_a_file_with_the_longest_name_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def content(_stub: Any, _task_id: str, _path: str) -> AsyncGenerator[bytes]:
        yield b"tea"

    monkeypatch.setattr(files, "read_file", content)
    name = "€" * 85  # 255 bytes
    assert run("files", "get", TASK, "a.txt", "-o", str(tmp_path / name)).exit_code == 0
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [(name, b"tea")]


def test_a_refused_key_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(_request: pb.CreateApiKeyRequest) -> pb.CreateApiKeyResponse:
        assert (tmp_path / "ci.key").stat().st_mode & 0o777 == 0o400  # made before the key exists
        raise PermissionDenied("no")

    answer_calls(monkeypatch, "api_keys", "CreateApiKey", refused)
    assert (
        run("keys", "api", "create", "ci", "--permission", "read", "--output", str(tmp_path / "ci.key")).exit_code == 3
    )
    assert list(tmp_path.iterdir()) == []


def test_a_key_is_in_its_file_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def created(_request: pb.CreateApiKeyRequest) -> pb.CreateApiKeyResponse:
        return pb.CreateApiKeyResponse(api_key=pb.ApiKey(key_id="k1"), secret="tnr_k1_secret")

    answer_calls(monkeypatch, "api_keys", "CreateApiKey", created)
    ended = run("keys", "api", "create", "ci", "--permission", "read", "--output", str(tmp_path / "ci.key"))
    assert (ended.exit_code, (tmp_path / "ci.key").read_text()) == (0, "tnr_k1_secret\n")
    assert "secret" not in ended.output


@needs_proc
def test_full_disk_reports_the_key_to_revoke() -> None:
    created = pb.CreateApiKeyResponse(api_key=pb.ApiKey(key_id="k1"), secret="tnr_k1_secret")
    with (
        Path("/dev/full").open("wb") as full,
        pytest.raises(click.ClickException, match="k1") as raised,
    ):
        write_secret(full.fileno(), created)
    assert "secret" not in str(raised.value)


def test_dataset_does_not_follow_links(tmp_path: Path) -> None:
    """Not even a link with the name of an unfinished file: the folder may be one that others write to."""
    precious, dataset = tmp_path / "precious", tmp_path / "runs.jsonl"
    precious.write_text("mine")
    (tmp_path / "runs.jsonl.part").symlink_to(precious)
    with _replaced(dataset) as file:
        file.write("{}\n")
    assert (precious.read_text(), dataset.read_text()) == ("mine", "{}\n")
    assert dataset.stat().st_mode & 0o777 == 0o600
    with pytest.raises(KeyError), _replaced(dataset):
        raise KeyError
    assert {each.name for each in tmp_path.iterdir()} == {"precious", "runs.jsonl", "runs.jsonl.part"}
    assert dataset.read_text() == "{}\n"
