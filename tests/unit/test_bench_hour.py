"""The sections rolling and hour of the bench plan what they say, and record alerts as they fire and clear."""

from __future__ import annotations

import asyncio
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from bench import prometheus_server
from bench.hour import plan_of
from bench.open_load import NAME, ShortTask
from bench.options import Options, Size
from bench.prometheus_server import AlertRecord
from devstack.simulator.scenario import load_scenario


class Answers:
    """A Prometheus that answers this, one after another, and the last answer for ever."""

    def __init__(self, *answers: set[str] | OSError) -> None:
        self._answers = chain(answers, repeat(answers[-1]))

    async def alerts(self) -> set[str]:
        answer = next(self._answers)
        if isinstance(answer, OSError):
            raise answer
        return answer


async def recorded(answers: Any, until: Any, monkeypatch: pytest.MonkeyPatch) -> AlertRecord:
    monkeypatch.setattr(prometheus_server, "POLL_SECONDS", 0.001)
    record = AlertRecord(answers)
    recording = asyncio.create_task(record.run())
    assert await record.until(until, 60.0)
    recording.cancel()
    return record


async def test_an_alert_is_recorded_until_it_clears(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(set(), {"A", "B"}, OSError("no answer"), {"B"})
    record = await recorded(answers, lambda fired: "A" in fired and fired["A"].cleared_at is not None, monkeypatch)
    assert {name: alert.cleared_at is None for name, alert in record.fired.items()} == {"A": False, "B": True}


async def test_an_alert_that_fires_again_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    record = await recorded(
        Answers({"A"}, set(), {"A"}), lambda fired: "A" in fired and fired["A"].times == 2, monkeypatch
    )
    assert record.fired["A"].cleared_at is None


async def test_an_alert_that_never_fires_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not await AlertRecord(Answers(set())).until(lambda fired: "A" in fired, 0.01)  # type: ignore[arg-type]


def test_minutes_replace_the_length_of_a_size(tmp_path: Path) -> None:
    assert plan_of(Options(tmp_path, Size.FULL, print)).seconds == 3600
    plan = plan_of(Options(tmp_path, Size.FULL, print, minutes=10))
    assert (plan.seconds, plan.kill_every) == (600, 60)
    assert 0 < plan.backup_at < plan.restart_at < plan.seconds


def test_a_short_task_has_its_turns(tmp_path: Path) -> None:
    file = ShortTask(turns=3, model_seconds=0.5, tool_seconds=0.1).scenario_file(tmp_path / "scenarios")
    scenario = load_scenario(file)
    assert file.stem == NAME
    assert [len(scenario.turn(number).calls) for number in range(4)] == [1, 1, 1, 0]
