"""Options that every command takes before and after the verb, and money as people read it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tenure.cli.context import Context, pass_context
from tenure.cli.entry_lines import describe
from tenure.cli.formatting import budget_text
from tenure.cli.main import add_common_options, cli
from tenure.domain.budget import money_text
from tenure.v1 import ledger_pb2, task_pb2


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize(("path", "command"), list(commands(cli)), ids=str)
def test_every_command_takes_json_and_verbose(path: tuple[str, ...], command: click.Command) -> None:
    flags = [flag for parameter in command.params for flag in parameter.opts]
    assert flags.count("--json") == 1, path
    assert flags.count("-v") == 1, path


@click.command()
@pass_context
def said(context: Context) -> None:
    click.echo(json.dumps([context.as_json, context.is_verbose]))


@pytest.mark.parametrize(
    ("line", "heard"),
    [
        (["group", "said"], [False, False]),
        (["--json", "group", "said"], [True, False]),
        (["group", "--json", "said"], [True, False]),
        (["group", "said", "--json"], [True, False]),
        (["--json", "group", "said", "-v"], [True, True]),
    ],
)
def test_an_option_holds_wherever_it_stands(
    monkeypatch: pytest.MonkeyPatch, line: list[str], heard: list[bool]
) -> None:
    group = click.Group("group", commands={"said": click.Command("said", callback=said.callback)})
    add_common_options(group)
    monkeypatch.setitem(cli.commands, "group", group)
    result = CliRunner().invoke(cli, line)
    assert json.loads(result.output) == heard


@pytest.mark.parametrize(
    ("nano_usd", "text"),
    [
        (0, "$0.00"),
        (19_164_750, "$0.019"),
        (223_262_500, "$0.22"),
        (500_000_000, "$0.50"),
        (1, "$0.0000000010"),
        (12_345_600_000, "$12.35"),
        (1_234_567_000_000, "$1,234.57"),
        (-19_164_750, "-$0.019"),
        (999_999_999, "$1.00"),
        (99_999_999, "$0.10"),
    ],
)
def test_money_has_two_significant_digits_below_a_dollar(nano_usd: int, text: str) -> None:
    assert money_text(nano_usd) == text


def test_a_budget_is_exact_where_details_are_wanted() -> None:
    budget = task_pb2.BudgetStatus(max_tokens=10, used_nano_usd=19_164_750, reserved_nano_usd=223_262_500)
    assert budget_text(budget).endswith("$0.019, $0.22 reserved")
    assert budget_text(budget, is_exact=True).endswith("$0.01916475, $0.2232625 reserved")


def test_the_entries_of_a_ledger_show_money_as_people_read_it() -> None:
    attempt = ledger_pb2.ModelAttempt(attempt_number=1, reserved_tokens=7, reserved_nano_usd=223_262_500)
    granted = ledger_pb2.OperatorRequest(reason="worth it")
    granted.grant_budget.extra_nano_usd = 500_000_000
    bodies = [ledger_pb2.EntryBody(model_attempt=attempt), ledger_pb2.EntryBody(operator_request=granted)]
    first, second = (describe(ledger_pb2.Entry(body=body)) for body in bodies)
    assert "7 tokens and $0.22 reserved" in first
    assert "grants $0.50 more" in second
