"""Every duty of every service is noticed when it stops making progress, or says in the code why it need not be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from services.checkpoint import main as checkpoint
from services.checkpoint.queue.sweeps import SWEEPS
from tenure.runtime.process import NoLimit
from tests.contract.sources import ROOT, calls_of

SERVICES = ("checkpoint", "coordinator", "gateway", "tools", "worker", "models")
FOLDERS = (*(f"services/{service}" for service in SERVICES), "edges")
NAME, DUTY = 0, 1


@dataclass(frozen=True)
class Started:
    """One call of `Duties.start`. `limit`: the expression that is given as `silence_seconds`."""

    file: str
    name: str
    limit: str


def started_duties(folder: str) -> Iterator[Started]:
    """Calls `….start(name, duty, …)` of an object, not of a class: only duties are started like this."""
    for file, call in calls_of("start", (folder,)):
        named = len(call.args) > DUTY and isinstance(call.args[NAME], ast.Constant | ast.JoinedStr | ast.Name)
        if named and ast.unparse(call.func).islower():
            limits = [ast.unparse(one.value) for one in call.keywords if one.arg == "silence_seconds"]
            yield Started(file, ast.unparse(call.args[NAME]), limits[0] if limits else "None")


def test_every_duty_has_a_silence_limit_or_a_reason() -> None:
    duties = [duty for folder in FOLDERS for duty in started_duties(folder)]
    assert [f"{duty.file} {duty.name}" for duty in duties if duty.limit == "None"] == []
    unlimited = {duty.limit for duty in duties if duty.limit.isupper() and not duty.limit.endswith("SECONDS")}
    assert unlimited == {"UNTIL_THE_END"}
    assert isinstance(checkpoint.UNTIL_THE_END, NoLimit)
    assert checkpoint.UNTIL_THE_END.why


def test_only_services_start_duties() -> None:
    assert list(started_duties("tenure/runtime")) == []
    assert {path.name for path in (ROOT / "services").iterdir() if path.is_dir()} - {"__pycache__"} == set(SERVICES)


def test_the_check_sees_every_duty() -> None:
    """If the way in which they are started changes, the test above must not see none."""
    names = {service: {duty.name.strip("'") for duty in started_duties(f"services/{service}")} for service in SERVICES}
    assert {"dispatch", "reconciliation", "claim deletions", "endings"} <= names["coordinator"]
    assert {"commit", "name", "starts", "prune tasks", "webhooks", "close watches"} <= names["checkpoint"]
    assert {"retries", "deadlines", "waits"} <= SWEEPS.keys()
    assert {"renew runner", "sweep workspaces"} <= names["tools"]
    assert {"session", "commit stream", "tool stream", "usage reports", "attendance", "agents"} == names["worker"]
