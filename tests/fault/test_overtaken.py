"""Operators between a decision and its execution, at every failpoint: whatever they were answered stays true.

Processes are delayed here, not killed. A seed arms all failpoints, and gives each the action that an operator begins
while a process is stopped there. Five seeds in a row play every action at every failpoint:

    TENURE_EXAMPLES=5 pytest tests/fault/test_overtaken.py       # five seeds from the first one on
    TENURE_OVERTAKEN_SEEDS=3,17 pytest tests/fault/test_overtaken.py  # these
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tenure.domain.errors import TenureError
from tenure.runtime.failpoints import FAILPOINTS
from tenure.wire.ledger import entries_to_domain
from tests.fault import failpoint_scenes as scenes
from tests.fault.suite.between import Action, Between, first_action
from tests.fault.suite.installation import Installation
from tests.fault.suite.operator_laws import undone
from tests.fault.suite.schedule import Mode, PlannedFault, Schedule
from tests.fault.suite.traffic import Submitted
from tests.fault.suite.trial import Trial
from tests.support.examples import FACTOR
from tests.support.patience import slowness_now

pytestmark = [
    pytest.mark.server,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
    pytest.mark.faults,
]

DEFAULT_SEED: Final = 1
TRIES: Final = 6
SECONDS: Final = 40.0
START_SECONDS: Final = 3.0
"""What the armed processes need to come back on an idle machine: before that no fault of a scene meets anybody."""

SCENES: Final = {
    **scenes.SCENES,
    "coordinator.before_reattach": scenes.RECONNECTS,
    "coordinator.after_reattach": scenes.RECONNECTS,
    "coordinator.before_session_end": scenes.RECONNECTS,
}
FEW: Final = scenes.Scene(scenes.RECONNECTS.tasks * 2)
"""There are tasks from the beginning: operators need them for failpoints on the way to serving."""
LATER: Final = (scenes.CANCELS, scenes.DEADLINES, scenes.ENDINGS, scenes.LOSSES, scenes.DRAINS)
"""Scenes that take workers away. The other scenes are played first, all at once, while there are workers."""


def _seeds() -> list[int]:
    chosen = os.environ.get("TENURE_OVERTAKEN_SEEDS", "")
    if chosen:
        return [int(seed) for seed in chosen.split(",")]
    return [*range(DEFAULT_SEED, DEFAULT_SEED + FACTOR)]


@pytest.mark.parametrize("seed", _seeds())
async def test_actions_at_every_failpoint_keep_their_acknowledgement(
    small_installation: Installation, tmp_path: Path, seed: int
) -> None:
    """What leads to a failpoint is a matter of time: it may take more tries."""
    to_meet, pairs, earlier = set(FAILPOINTS) - scenes.ELSEWHERE, set[tuple[str, Action]](), tuple[Submitted, ...]()
    for number in range(TRIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        played = _scenes_for(to_meet, number)
        names = tuple(name for name in FAILPOINTS if name in to_meet and SCENES.get(name, scenes.WORK) in played)
        between = Between(folder, seed, names, tuple(scene.also for scene in played if scene.also), earlier)
        problems = await _play(small_installation, between, played)
        assert not problems, f"TENURE_OVERTAKEN_SEEDS={seed}:\n" + "\n".join(problems)
        to_meet -= {name for name, actions in between.met.items() if actions}
        pairs |= {(one.at, one.action) for one in between.done}
        _report(between, number, to_meet)
        if small_installation.traffic is not None:
            earlier = tuple(task for task in small_installation.traffic.tasks if task.task_id) or earlier
        if not to_meet:
            break
    print(f"seed {seed}: {len(pairs)} pairs of failpoint and action that was acknowledged")  # noqa: T201
    assert not to_meet, f"TENURE_OVERTAKEN_SEEDS={seed}: no operator acted at {', '.join(sorted(to_meet))}"


async def test_five_seeds_play_every_action_at_every_failpoint() -> None:
    played = {(name, first_action(name, seed)) for name in FAILPOINTS for seed in range(7, 7 + len(Action))}
    assert len(played) == len(FAILPOINTS) * len(Action)


def _scenes_for(to_meet: set[str], number: int) -> list[scenes.Scene]:
    """The first time all but the later ones."""
    wanted = dict.fromkeys([FEW, *(SCENES.get(name, scenes.WORK) for name in FAILPOINTS if name in to_meet)])
    return [scene for scene in wanted if number > 0 or scene not in LATER]


async def _play(install: Installation, between: Between, played: list[scenes.Scene]) -> list[str]:
    """One trial; all that is wrong in the end."""
    start_seconds = START_SECONDS * slowness_now()
    tasks = [
        replace(task, at=task.at + (start_seconds if scene in LATER else 0.0))
        for scene in played
        for task in scene.tasks
    ]
    faults = [replace(fault, at=fault.at + start_seconds) for scene in played for fault in scene.faults]
    faults.append(PlannedFault(0.0, "overtake", "everything", SECONDS))
    schedule = Schedule(between.seed, Mode.LIVENESS, tuple(tasks), tuple(faults))
    install.between, install.traffic = between, None
    operators = asyncio.create_task(between.run(install))
    try:
        await between.arm(install)
        verdict = await Trial(install, schedule).run()
    finally:
        operators.cancel()
        with suppress(asyncio.CancelledError):
            await operators
    for task_id in {violation.task_id for violation in verdict.violations}:
        await _print_history(install, between, task_id)
    return [*map(str, verdict.violations), *await _undone(install, between)]


async def _undone(install: Installation, between: Between) -> list[str]:
    problems: list[str] = []
    for task_id in sorted({one.task_id for one in between.done}):
        entries = entries_to_domain([entry async for entry in install.users[0].entries(task_id)])
        broken = [*undone(entries, [one for one in between.done if one.task_id == task_id])]
        problems += [f"{task_id}: {one}" for one in broken]
        if broken:
            await _print_history(install, between, task_id)
    return problems


async def _print_history(install: Installation, between: Between, task_id: str) -> None:
    """What happened to a task of which a law was broken, and what operators did to it."""
    with suppress(TenureError):
        async for entry in install.users[0].entries(task_id):
            body = str(entry.body).replace("\n", " ")[:300]
            print(f"{entry.sequence} {entry.record_time.ToJsonString()} {entry.actor} epoch {entry.epoch} {body}")  # noqa: T201
    print([one for one in between.done if one.task_id == task_id])  # noqa: T201


def _report(between: Between, number: int, to_meet: set[str]) -> None:
    """pytest shows it with a failure, or with -s."""
    actions = {at: [action.value for action in done] for at, done in sorted(between.met.items())}
    print(f"seed {between.seed}, try {number}: {len(between.done)} acknowledged, {len(actions)} met: {actions}")  # noqa: T201
    print(f"still to be met: {sorted(to_meet)}")  # noqa: T201
