"""Every duty of every service is noticed when it stops making progress, or says in the code why it need not be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.checkpoint import main as checkpoint
from tenure.runtime.process import NoLimit

REPOSITORY = Path(__file__).parents[2]
SERVICES = ("checkpoint", "coordinator", "gateway", "tools", "worker", "models")
NAME, DUTY = 0, 1


@dataclass(frozen=True)
class Started:
    """One call of `Duties.start`. `limit`: the expression that is given as `silence_seconds`."""

    where: str
    name: str
    limit: str


def started_in(source: str, where: str) -> Iterator[Started]:
    """Calls `….start(name, duty, …)` whose first argument is a text: of all that is started only duties are."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "start":
            continue
        if len(node.args) > DUTY and isinstance(node.args[NAME], ast.Constant | ast.JoinedStr):
            limits = [ast.unparse(one.value) for one in node.keywords if one.arg == "silence_seconds"]
            yield Started(f"{where}:{node.lineno}", ast.unparse(node.args[NAME]), limits[0] if limits else "None")


def duties_of(folder: str) -> list[Started]:
    files = sorted((REPOSITORY / folder).rglob("*.py"))
    sources = [(path.read_text(encoding="utf-8"), str(path.relative_to(REPOSITORY))) for path in files]
    return [duty for source, where in sources for duty in started_in(source, where)]


@pytest.mark.parametrize("service", SERVICES)
def test_every_duty_has_a_silence_limit_or_a_reason(service: Any) -> None:
    duties = duties_of(f"services/{service}")
    assert [f"{duty.where} {duty.name}" for duty in duties if duty.limit == "None"] == []


def test_no_duty_is_started_elsewhere_than_in_a_service() -> None:
    assert duties_of("tenure/runtime") == []
    assert {path.name for path in (REPOSITORY / "services").iterdir() if path.is_dir()} - {"__pycache__"} == set(
        SERVICES
    )


def test_the_services_duties_are_seen() -> None:
    """As many as there are: if the way in which they are started changes, the test above must not see none."""
    names = {service: {duty.name.strip("'") for duty in duties_of(f"services/{service}")} for service in SERVICES}
    assert {"dispatch", "reconciliation", "claim deletions", "endings"} <= names["coordinator"]
    assert {"commit", "retries", "deadlines", "waits", "prune tasks", "webhooks", "close watches"} <= names[
        "checkpoint"
    ]
    assert {"renew runner", "sweep workspaces"} <= names["tools"]
    assert {"session", "commit stream", "tool stream", "usage reports", "attendance", "agents"} == names["worker"]


def test_whoever_has_no_limit_gives_a_reason() -> None:
    unlimited = [duty for service in SERVICES for duty in duties_of(f"services/{service}") if duty.limit.isupper()]
    without = {duty.limit for duty in unlimited if not duty.limit.endswith("SECONDS")}
    assert without == {"UNTIL_THE_END"}
    assert isinstance(checkpoint.UNTIL_THE_END, NoLimit)
    assert checkpoint.UNTIL_THE_END.why


def test_a_duty_without_a_limit_is_noticed() -> None:
    source = 'duties.start("sweep", sweep)\nduties.start(f"write {n}", write, may_end=True, silence_seconds=5.0)\n'
    assert [duty.limit for duty in started_in(source, "x.py")] == ["None", "5.0"]
