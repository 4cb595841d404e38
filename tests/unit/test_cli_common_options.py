"""Options that every command takes before and after the verb, and money as people read it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tenure.cli.context import Context, pass_context
from tenure.cli.entry_lines import describe
from tenure.cli.exit_codes import Exit
from tenure.cli.main import cli
from tenure.v1 import ledger_pb2


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(cli)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize(("path", "command"), list(commands(cli)), ids=str)
def test_every_command_takes_the_options_of_the_line(path: tuple[str, ...], command: click.Command) -> None:
    flags = [flag for parameter in command.params for flag in parameter.opts]
    expected = 0 if path[:-1] == ("serve",) else 1  # a service reads its arguments itself
    assert [flags.count(flag) for flag in ("--json", "-v", "--tenant", "--address")] == [expected] * 4


@click.command()
@pass_context
def show_options(context: Context) -> None:
    click.echo(json.dumps([context.as_json, context.is_verbose, context.tenant, context.address]))


HERE = "127.0.0.1:8470"


@pytest.mark.parametrize(
    ("line", "heard"),
    [
        (["group", "said"], [False, False, None, HERE]),
        (["--json", "group", "said"], [True, False, None, HERE]),
        (["group", "--json", "said"], [True, False, None, HERE]),
        (["group", "said", "--json"], [True, False, None, HERE]),
        (["--json", "group", "said", "-v"], [True, True, None, HERE]),
        (["group", "said", "--tenant", "acme"], [False, False, "acme", HERE]),
        (["group", "-v", "said", "--tenant=acme", "--address", "a.example:1"], [False, True, "acme", "a.example:1"]),
        (["--tenant", "first", "--address", "a:1", "group", "said", "--tenant", "last"], [False, False, "last", "a:1"]),
    ],
)
def test_option_counts_at_every_position(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: list[str], heard: list[Any]
) -> None:
    monkeypatch.chdir(tmp_path)  # without the stack of a developer
    group = click.Group("group", commands={"said": click.Command("said", callback=show_options.callback)})
    monkeypatch.setitem(cli.commands, "group", group)
    result = CliRunner().invoke(cli, line)
    assert json.loads(result.output) == heard


def test_wrong_address_is_a_usage_error() -> None:
    for line in (["--address", "nowhere:", "list"], ["list", "--address", "nowhere:"]):
        result = CliRunner().invoke(cli, line)
        assert (result.exit_code, "write for example 127.0.0.1:8470" in result.stderr) == (Exit.USAGE, True)


def test_the_help_lists_the_daily_commands_first() -> None:
    shown = CliRunner().invoke(cli, ["--help"]).output
    listed = re.findall(r"^  ([a-z]+)  +\S", shown[shown.index("Daily:") :], re.MULTILINE)
    daily = ["submit", "watch", "get", "list", "waits", "resume", "cancel", "fork", "files", "explain", "top"]
    assert listed[:11] == daily
    assert listed[11:14] == ["dev", "demo", "serve"]
    assert [name for name in listed if name not in cli.commands] == []
    assert set(listed) == set(cli.commands)


def test_an_unknown_name_gets_the_nearest_ones() -> None:
    result = CliRunner().invoke(cli, ["lsit"])
    assert (result.exit_code, "The nearest: list" in result.stderr) == (Exit.USAGE, True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_calls_tenure(shell: str) -> None:
    script = CliRunner().invoke(cli, ["completion", shell]).output
    assert f"_TENURE_COMPLETE={shell}_complete" in script


@pytest.mark.parametrize(
    ("words", "completed"),
    [("tenure sub", "submit"), ("tenure schedules tr", "trigger"), ("tenure schedules list --ten", "--tenant")],
)
def test_commands_and_options_are_completed(words: str, completed: str) -> None:
    environment = {"_TENURE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    result = CliRunner().invoke(cli, [], prog_name="tenure", env=environment)
    assert result.output == f"plain,{completed}\n"


def test_the_entries_of_a_ledger_show_money_as_people_read_it() -> None:
    attempt = ledger_pb2.ModelAttempt(attempt_number=1, reserved_tokens=7, reserved_nano_usd=223_262_500)
    granted = ledger_pb2.OperatorRequest(reason="worth it")
    granted.grant_budget.extra_nano_usd = 500_000_000
    bodies = [ledger_pb2.EntryBody(model_attempt=attempt), ledger_pb2.EntryBody(operator_request=granted)]
    first, second = (describe(ledger_pb2.Entry(body=body)) for body in bodies)
    assert "reserved" not in first
    assert "grants $0.50 more" in second
    assert "7 tokens and $0.2232625 reserved" in describe(ledger_pb2.Entry(body=bodies[0]), is_verbose=True)


@pytest.mark.parametrize(
    ("line", "expected"),
    [([], "tnr_variable"), (["--json"], "tnr_variable"), (["--api-key-file", "FILE"], "tnr_file")],
)
def test_a_key_goes_before_the_file_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: list[str], expected: str
) -> None:
    """As in the Python client, so that one environment is one caller."""
    file = tmp_path / "key"
    file.write_text("tnr_file\n")
    monkeypatch.setenv("TENURE_API_KEY", "tnr_variable")
    monkeypatch.setenv("TENURE_API_KEY_FILE", str(file))
    seen: list[str] = []

    @click.command()
    @pass_context
    def key(context: Context) -> None:
        seen.append(context.api_key() if callable(context.api_key) else context.api_key)

    monkeypatch.setitem(cli.commands, "key", key)
    options = [str(file) if each == "FILE" else each for each in line]
    before, after = ([], options) if line == ["--json"] else (options, [])
    assert CliRunner().invoke(cli, [*before, "key", *after]).exit_code == 0
    assert seen == [expected]
