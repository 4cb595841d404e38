"""What exit codes mean, and what is said beside them."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner

from tenure.cli.error_texts import exit_of_error, exit_of_task, explain
from tenure.cli.exit_codes import Exit
from tenure.cli.main import cli
from tenure.domain import errors
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import task_pb2


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(cli, list(arguments))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.NotFound("no"), Exit.REFUSED),
        (errors.WrongState("no"), Exit.REFUSED),
        (errors.InvalidRequest(violations=[("goal", "must be")]), Exit.REFUSED),
        (errors.Unavailable("no"), Exit.UNAVAILABLE),
        (errors.LimitReached("no"), Exit.UNAVAILABLE),
        (TimeoutError("no"), Exit.NOT_YET),
        (PeerFailed(grpc.StatusCode.INTERNAL, "bug"), Exit.INTERNAL),
    ],
)
def test_error_decides_the_exit_code(error: Any, code: Any) -> None:
    assert exit_of_error(error) == code


def test_only_success_is_a_yes() -> None:
    for name, number in task_pb2.TaskState.items():
        if name.endswith(("SUCCEEDED", "FAILED", "TIMED_OUT", "CANCELLED", "EXCEEDED")):
            assert (exit_of_task(task_pb2.Task(state=number)) == Exit.OK) is name.endswith("SUCCEEDED")


def test_every_exit_code_is_in_the_help() -> None:
    names = {int(code) for code in re.findall(r"^\s*(\d+)  ", run("--help").output, re.MULTILINE)}
    assert names == {code.value for code in Exit}


@pytest.mark.parametrize("reason", ["NO_API_KEY", "API_KEY_INVALID"])
def test_missing_or_wrong_key_names_the_option(reason: str) -> None:
    error = errors.Unauthenticated("send the metadata authorization", reason=reason)
    told = explain(error, "")
    assert "tenure keys api create" in told
    assert "--api-key-file" in told
    assert "metadata" not in told


def test_unreachable_gateway_exits_with_4() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        result = run("--address", address, "list")
    assert result.exit_code == Exit.UNAVAILABLE
    assert result.stderr.startswith(f"tenure: no gateway answers at {address}")
    assert "tenure dev" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_follower_without_answers_reports_its_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.cli.follow._SILENCE_SECONDS", 0.0)
    monkeypatch.setattr("tenure.client.reconnect.RECONNECT_SECONDS", 0.0)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        result = run("--address", f"127.0.0.1:{closed.getsockname()[1]}", "tasks", "follow")
    assert result.exit_code == Exit.UNAVAILABLE
    assert [line.split(" at ")[0] for line in result.stderr.splitlines()] == [
        "no gateway answers",
        "tenure: no gateway answers",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["submit"],
        ["submit", "x", "--priority", "urgent"],
        ["submit", "x", "--label", "novalue"],
        ["submit", "x", "--timeout", "soon"],
        ["submit", "x", "--tools", "a", "--no-tools"],
        ["submit", "x", "--max-output-tokens", "64001"],
        ["submit", "x", "--on-lease-lost", "fail"],
        ["submit", "x", "--retries", "101"],
        ["list", "--state", "HAPPY"],
        ["dev", "--etcd", "127.0.0.1:1", "--etcd-binary", "etcd"],
        ["nonsense"],
        ["--address", "no:port", "list"],
        ["--address", "one:8470,two:8470", "list"],
        ["--address", "http://127.0.0.1:8470", "list"],
    ],
)
def test_a_wrong_command_line_is_2(arguments: Any) -> None:
    result = run(*arguments)
    assert result.exit_code == Exit.USAGE
    assert "Error:" in result.stderr


def test_keys_are_made_and_never_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    assert run("keys", "create", str(folder)).exit_code == Exit.OK
    private = (folder / "signing.json").read_bytes()
    assert (folder / "signing.json").stat().st_mode & 0o077 == 0
    again = run("keys", "create", str(folder))
    assert again.exit_code != Exit.OK
    assert "is not overwritten" in again.stderr
    assert (folder / "signing.json").read_bytes() == private
