"""How things are said, and what people may type."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from google.protobuf.timestamp_pb2 import Timestamp

from tenure.cli import formatting
from tenure.cli.formatting import budget_text, distinct_ids
from tenure.cli.main import cli
from tenure.cli.parameters import DURATION, LABEL, NAMES
from tenure.cli.tenants import cost_text
from tenure.domain.budget import money_text
from tenure.v1 import task_pb2
from tenure.v1 import tenant_service_pb2 as pb
from tests.unit.golden_files import compare_with_golden


@pytest.mark.parametrize(
    ("typed", "seconds"),
    [("90s", 90.0), ("10m", 600.0), ("1h30m", 5400.0), ("250ms", 0.25), ("2.5m", 150.0), ("45", 45.0)],
)
def test_durations_are_typed_with_their_units(typed: str, seconds: float) -> None:
    assert DURATION.convert(typed, None, None) == seconds


@pytest.mark.parametrize("typed", ["", "soon", "10 minutes", "m", "10m!", "-5s", "1y"])
def test_invalid_duration_is_refused(typed: str) -> None:
    with pytest.raises(click.BadParameter):
        DURATION.convert(typed, None, None)


def test_a_label_is_split_at_its_first_equals_sign() -> None:
    assert LABEL.convert("team=a=b", None, None) == ("team", "a=b")
    for typed in ("team", "=x"):
        with pytest.raises(click.BadParameter):
            LABEL.convert(typed, None, None)


def test_an_empty_list_of_tools_is_not_taken_for_all_tools() -> None:
    assert NAMES.convert("a, b,", None, None) == ("a", "b")
    with pytest.raises(click.BadParameter, match="--no-tools"):
        NAMES.convert(",", None, None)


def passed(seconds: int) -> Timestamp:
    moment = Timestamp()
    moment.FromNanoseconds(time.time_ns() - seconds * 1_000_000_000)
    return moment


def money_cap(model: str, nano_usd: int, cap: task_pb2.MoneyCap.ValueType) -> str:
    limits = task_pb2.Limits(max_nano_usd=nano_usd, money_cap=cap)
    spec = task_pb2.TaskSpec(agent=task_pb2.AgentSpec(model=model), limits=limits)
    return f"{task_pb2.MoneyCap.Name(cap)}, {formatting.model_text(spec)}: {formatting.money_cap_text(spec)}"


def table_of(shown: Callable[..., Any], *values: Any) -> str:
    rows = (value if isinstance(value, tuple) else (value,) for value in values)
    return "\n".join(f"{', '.join(map(repr, row))} → {shown(*row)}" for row in rows)


USAGE = task_pb2.TokenUsage(
    input_tokens=1000, output_tokens=200, cache_creation_input_tokens=30, cache_read_input_tokens=4
)
RESERVED = task_pb2.BudgetStatus(max_tokens=10, reserved_tokens=3, used_nano_usd=19_164_750, reserved_nano_usd=5)
CAPPED = task_pb2.BudgetStatus(max_tokens=10, used_nano_usd=1_000_000, max_nano_usd=5_000_000)
BILLS = {
    "with a price": pb.UsageSum(calls=3, nano_usd=2_000_000_000),
    "without a price": pb.UsageSum(calls=3, unpriced_calls=3),
    "simulated": pb.UsageSum(calls=3, simulated_calls=3),
    "simulated, with a price": pb.UsageSum(calls=3, simulated_calls=3, simulated_nano_usd=7, nano_usd=7),
    "some without a price": pb.UsageSum(calls=5, unpriced_calls=2, nano_usd=1_000_000_000),
    "some simulated": pb.UsageSum(calls=9, simulated_calls=4, simulated_nano_usd=5 * 10**8, nano_usd=15 * 10**8),
    "all kinds": pb.UsageSum(calls=6, simulated_calls=4, unpriced_calls=2),
}


def test_values_for_people_are_the_golden_file() -> None:
    """A duration has two figures, an age one unit, an amount of money two decimals or what makes it distinct."""
    seconds = (0.0124, 0.0999, 9.94, 9.96, 119.4, 4.0, 119.6, 3599.9, 7500.0, 86_399.0, 86_400.0, 273_600.0)
    amounts = (0, 19_164_750, 223_262_500, 500_000_000, 1, 9_999_999, 10_000_000, 12_345_600_000, 1_234_567_000_000)
    capped = (task_pb2.MONEY_CAP_UNSPECIFIED, task_pb2.MONEY_CAP_SUBMITTED, task_pb2.MONEY_CAP_DEFAULT)
    caps = [money_cap("m", 10**10, cap) for cap in capped]
    caps += [money_cap("m", 0, cap) for cap in task_pb2.MoneyCap.values() if cap not in capped[1:]]
    texts = {
        "durations": table_of(formatting.seconds_text, *seconds),
        "ages": table_of(lambda age: formatting.ago(passed(age)), 5, 117, 600, 200_000),
        "money": table_of(money_text, *amounts, -19_164_750, 999_999_999, 99_999_999),
        "lines": table_of(formatting.one_line, ("a\n  b\tc", 10), ("x" * 11, 10)),
        "first lines": table_of(formatting.first_line, ("\n\nfirst\nsecond\n\nthird\n", 80), ("", 80)),
        "arguments": table_of(
            formatting.arguments_text, '{"path": "ü.txt", "n": 5}', '{"code": "a\\nb"}', "[1, 2]", "{not json"
        ),
        "caps in money": "\n".join([*caps, money_cap("", 0, task_pb2.MONEY_CAP_NONE_UNPRICED)]),
        "usage": f"{formatting.tokens_total(USAGE)}: {formatting.usage_text(USAGE)}",
        "budgets": "\n".join([budget_text(RESERVED), budget_text(RESERVED, is_verbose=True), budget_text(CAPPED)]),
        "bills": "\n".join(f"{name} → {cost_text(bill)}" for name, bill in BILLS.items()),
    }
    compare_with_golden("formats.txt", texts)


def test_unset_time_is_a_dash() -> None:
    assert formatting.ago(Timestamp()) == "-"


def test_ids_are_cut_to_a_distinct_length() -> None:
    apart = distinct_ids(["01a2007f-3602-74e0", "01a2007f-3603-74e0"])
    assert list(apart.values()) == ["01a2007f-3602", "01a2007f-3603"]
    together = distinct_ids(["01a2007f-3602-74e0-8abc", "01a2007f-3602-74e1-8abc"])
    assert list(together.values()) == ["01a2007f-3602-74e0", "01a2007f-3602-74e1"]


HOSTILE = "\0\x1b]0;title\x07\x1b[2J\x9b31mred\r\nsecond\rline \u202egnp.exe"


def test_control_characters_are_escaped() -> None:
    shown = formatting.harmless(HOSTILE)
    assert shown == "\\x00\\x1b]0;title\\x07\\x1b[2J\\x9b31mred\nsecond\\rline \\u202egnp.exe"
    assert formatting.harmless("tab\there, ünïcode, 👩‍💻\n") == "tab\there, ünïcode, 👩‍💻\n"
    assert formatting.why(task_pb2.TASK_STATE_FAILED, "", HOSTILE) == f"FAILED: {shown}"
    for expected in (formatting.one_line(HOSTILE, 500), formatting.first_line(HOSTILE, 500)):
        assert all(one.isprintable() for one in expected)


@pytest.mark.parametrize(
    "command",
    [
        "submit x --start-in 99999999999d",
        "submit x --timeout 99999999999d",
        "submit x --timeout 0s",
        "fork x --timeout 0",
        "admin wait 0193f2a1-4c1b-7000-8000-000000000000 --for x --until 99999999999d --reason r",
        "admin prune --older-than 99999999999d --reason r",
        "keys api create k --permission read --expires-in 99999999999d",
        "tenants limit a --running-tasks nan --reason r",
        "tenants limit a --running-tasks inf --reason r",
        "tenants limit a --running-tasks=-1 --reason r",
        "tenants limit a --running-tasks 99999999999999999999 --reason r",
        "tenants limit a --usd-per-day 99999999999999999999 --reason r",
        "submit x --max-tokens 99999999999999999999",
        "fork x --at 99999999999999999999",
        "leases watch --after 99999999999999999999",
        "schedules create n x --cron * --zone Europe/Berlin --from 0001-01-01",
    ],
)
def test_a_number_out_of_range_is_a_usage_error(command: str) -> None:
    """None of them is a traceback, and none asks the gateway."""
    run = CliRunner().invoke(cli, ["--address", "127.0.0.1:1", *command.split()])
    assert (run.exit_code, run.stdout) == (2, "")
    assert "Error:" in run.stderr


@pytest.mark.parametrize("command", [["submit", "-"], ["submit", "x", "--result-schema", "FILE"], ["submit", "\udcff"]])
def test_bytes_outside_of_utf_8_are_a_usage_error(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_bytes(b"{\xb9")
    arguments = [str(file) if each == "FILE" else each for each in command]
    run = CliRunner().invoke(cli, ["--address", "127.0.0.1:1", *arguments], input=b"\xb9")
    assert (run.exit_code, run.stdout) == (2, "")
    assert "not text in UTF-8" in run.stderr
