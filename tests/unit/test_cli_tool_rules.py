"""The file of `tenure tools rules`: TOML or JSON, one rule or several, and faults that name the rule."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from tenure.cli.tool_rules import read_rules
from tenure.v1 import tool_pb2

TOML = """
[[rules]]
name = "refunds"
tool = "refund"
when = "args.amount <= 50"
verdict = "allow"
[rules.bounds]
count = 5
sum_of = "args.amount"
limit = 200
window = "24h"
beyond = "ask"
"""


def test_a_file_has_rules_as_toml_or_json(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(TOML)
    [rule] = read_rules(file)
    assert (rule.name, rule.verdict, rule.bounds.beyond) == (
        "refunds",
        tool_pb2.RULE_VERDICT_ALLOW,
        tool_pb2.RULE_VERDICT_ASK,
    )
    assert (rule.bounds.count, rule.bounds.limit, rule.bounds.window.seconds) == (5, "200", 86_400)
    one = tmp_path / "one.json"
    one.write_text(json.dumps({"name": "a", "tool": "b", "verdict": "deny"}))
    assert read_rules(one) == [tool_pb2.ToolRule(name="a", tool="b", verdict=tool_pb2.RULE_VERDICT_DENY)]


@pytest.mark.parametrize(
    ("window", "sent"),
    [("12d", "1036800s"), ("30d", "2592000s"), ("366d", "31622400s"), ("100000.5s", "100000.500s"), ("90", "90s")],
)
def test_a_window_is_sent_exactly(tmp_path: Path, window: str, sent: str) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(f'name = "a"\n[bounds]\nwindow = "{window}"')
    [rule] = read_rules(file)
    assert rule.bounds.window.ToJsonString() == sent


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('name = "a"\nverdict = "perhaps"', "PERHAPS"),
        ('name = "a"\nwhenn = "true"', "whenn"),
        ('name = "a"\n[bounds]\nwindow = "soon"', "rule 1"),
        ('name = "a"\n[bounds]\ncount = "many"', "rule 1"),
        ("rules = 3", "list of rules"),
        ("name", "Expected"),
    ],
)
def test_a_fault_of_a_file_names_the_rule(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(text)
    with pytest.raises(click.ClickException, match=fault):
        read_rules(file)
