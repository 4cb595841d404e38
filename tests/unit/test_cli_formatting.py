"""How things are said, and what people may type."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from google.protobuf.timestamp_pb2 import Timestamp

from tenure.cli import formatting
from tenure.cli.formatting import distinct_ids
from tenure.cli.main import cli
from tenure.cli.parameters import DURATION, LABEL, NAMES
from tenure.v1 import task_pb2


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


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0124, "12 ms"),
        (0.0999, "0.1 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (119.4, "119 s"),
        (4.0, "4 s"),
        (119.6, "2 min"),
        (3599.9, "1 h"),
        (7500.0, "2 h 5 min"),
        (86_399.0, "23 h 59 min"),
        (86_400.0, "24 h"),
        (273_600.0, "3 days 4 h"),
    ],
)
def test_durations_have_two_figures(seconds: float, said: str) -> None:
    assert formatting.seconds_text(seconds) == said


@pytest.mark.parametrize(
    ("passed", "said"), [(5, "5 s ago"), (117, "117 s ago"), (600, "10 min ago"), (200_000, "2 days ago")]
)
def test_age_has_one_unit(passed: int, said: str) -> None:
    moment = Timestamp()
    moment.FromNanoseconds(time.time_ns() - passed * 1_000_000_000)
    assert formatting.ago(moment) == said


def test_unset_time_is_a_dash() -> None:
    assert formatting.ago(Timestamp()) == "-"


def test_ids_are_cut_to_a_distinct_length() -> None:
    apart = distinct_ids(["01a2007f-3602-74e0", "01a2007f-3603-74e0"])
    assert list(apart.values()) == ["01a2007f-3602", "01a2007f-3603"]
    together = distinct_ids(["01a2007f-3602-74e0-8abc", "01a2007f-3602-74e1-8abc"])
    assert list(together.values()) == ["01a2007f-3602-74e0", "01a2007f-3602-74e1"]


def test_the_tokens_of_a_task_are_the_sum_of_the_four() -> None:
    usage = task_pb2.TokenUsage(
        input_tokens=1000, output_tokens=200, cache_creation_input_tokens=30, cache_read_input_tokens=4
    )
    assert formatting.tokens_total(usage) == 1234
    assert formatting.usage_text(usage) == "1,034 tokens in (4 from the cache, 0 %), 200 out"


def test_a_line_is_cut_with_an_ellipsis_and_whitespace_flattened() -> None:
    assert formatting.one_line("a\n  b\tc", 10) == "a b c"
    assert formatting.one_line("x" * 11, 10) == "x" * 9 + "…"


def test_first_line_counts_the_rest() -> None:
    assert formatting.first_line("\n\nfirst\nsecond\n\nthird\n", 80) == "first (+2 lines)"
    assert formatting.first_line("", 80) == ""


def test_arguments_are_shown_by_name_or_as_received() -> None:
    assert formatting.arguments_text('{"path": "ü.txt", "n": 5}') == 'path="ü.txt" n=5'
    assert formatting.arguments_text('{"code": "a\\nb"}') == 'code="a↵b"'
    assert formatting.arguments_text("[1, 2]") == "[1, 2]"
    assert formatting.arguments_text("{not json") == "{not json"


HOSTILE = "\0\x1b]0;title\x07\x1b[2J\x9b31mred\r\nsecond\rline \u202egnp.exe"


def test_control_characters_are_escaped() -> None:
    shown = formatting.harmless(HOSTILE)
    assert shown == "\\x00\\x1b]0;title\\x07\\x1b[2J\\x9b31mred\nsecond\\rline \\u202egnp.exe"
    assert formatting.harmless("tab\there, ünïcode, 👩‍💻\n") == "tab\there, ünïcode, 👩‍💻\n"
    assert formatting.why(task_pb2.TASK_STATE_FAILED, "", HOSTILE) == f"FAILED: {shown}"
    for expected in (formatting.one_line(HOSTILE, 500), formatting.first_line(HOSTILE, 500)):
        assert all(one.isprintable() for one in expected)


@pytest.mark.parametrize(
    ("model", "nano_usd", "money_cap", "expected"),
    [
        ("m", 10**10, task_pb2.MONEY_CAP_DEFAULT, "the cap in money is the default"),
        ("m", 10**10, task_pb2.MONEY_CAP_SUBMITTED, ""),
        ("m", 0, task_pb2.MONEY_CAP_NONE_UNPRICED, "no cap in money: the price of m is unknown"),
        (
            "",
            0,
            task_pb2.MONEY_CAP_NONE_UNPRICED,
            "no cap in money: the ledger does not know the worker's default model",
        ),
        ("m", 0, task_pb2.MONEY_CAP_NONE_SET, "no cap in money: the ledger sets none by default"),
        ("m", 0, task_pb2.MONEY_CAP_NONE_SUBMITTED, "no cap in money: the submit asked for none"),
        ("m", 0, task_pb2.MONEY_CAP_UNSPECIFIED, "no cap in money"),
        ("m", 10**10, task_pb2.MONEY_CAP_UNSPECIFIED, ""),
    ],
)
def test_the_reason_of_a_money_cap_is_shown(model: str, nano_usd: Any, money_cap: Any, expected: str) -> None:
    limits = task_pb2.Limits(max_nano_usd=nano_usd, money_cap=money_cap)
    spec = task_pb2.TaskSpec(agent=task_pb2.AgentSpec(model=model), limits=limits)
    assert formatting.money_cap_text(spec) == expected
    assert formatting.model_text(spec) == (model or "the worker's default model")


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
