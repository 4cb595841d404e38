"""Operators between a decision and its execution, at every failpoint: what they were told stays done.

TENURE_FUZZ_EXAMPLES=40 plays each scene with so many seeds, all failpoints armed in each of them: over the seeds every
action meets every failpoint.
"""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tenure.domain.errors import TenureError
from tenure.runtime.failpoint_names import FAILPOINTS
from tenure.wire.entries import entries_to_domain
from tests.fault import failpoint_scenes as scenes
from tests.fault.suite.between import Between
from tests.fault.suite.installation import Installation
from tests.fault.suite.operator_laws import undone
from tests.fault.suite.schedule import Mode, PlannedFault, Schedule
from tests.fault.suite.trial import Trial

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(7200)]

SEEDS: Final = int(os.environ.get("TENURE_FUZZ_EXAMPLES", "0"))
LEAST_SEEDS: Final = 5
_met: Final[set[str]] = set()
SECONDS: Final = 14.0
TOGETHER: Final = {
    "work": (scenes.WORK, scenes.SHAPES),
    "ends": (scenes.WORK, scenes.CANCELS, scenes.DEADLINES, scenes.ENDINGS, scenes.LOSSES, scenes.DRAINS),
    "others": (
        scenes.WORK,
        scenes.GENERATION,
        scenes.STALE,
        scenes.LEASES,
        scenes.SIGNALS,
        scenes.WEBHOOKS,
        scenes.PRUNES,
        scenes.FORKS,
    ),
}
TOGETHER["everything"] = tuple(dict.fromkeys((*TOGETHER["others"], *TOGETHER["ends"])))
"""Scenes that are played at once. The last leads to nearly every failpoint, the others to each in more ways."""


@pytest.mark.skipif(not SEEDS, reason="TENURE_FUZZ_EXAMPLES=1 and more plays operators between decision and execution")
@pytest.mark.parametrize("name", TOGETHER if SEEDS else ["everything"])
async def test_what_an_operator_was_told_stays_done(
    small_installation: Installation, tmp_path: Path, name: str
) -> None:
    first = random.SystemRandom().randrange(10**6)
    for seed in range(first, first + max(1, SEEDS)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        between = Between(folder, seed, tuple(FAILPOINTS))
        problems = await _play(small_installation, between, name)
        assert not problems, f"seed {seed}:\n" + "\n".join(problems)


@pytest.mark.skipif(SEEDS < LEAST_SEEDS, reason=f"TENURE_FUZZ_EXAMPLES={LEAST_SEEDS} and more lead to every failpoint")
async def test_somebody_acted_at_every_failpoint() -> None:
    """After the others."""
    assert set(FAILPOINTS) - _met == set()


async def _play(install: Installation, between: Between, name: str) -> list[str]:
    """One trial; all that is wrong in the end."""
    tasks = tuple(task for scene in TOGETHER[name] for task in scene.tasks)
    faults = tuple(fault for scene in TOGETHER[name] for fault in scene.faults)
    overtake = PlannedFault(0.0, "overtake", "everything", SECONDS)
    install.between, install.traffic = between, None
    operators = asyncio.create_task(between.run(install))
    try:
        await between.arm(install)
        verdict = await Trial(install, Schedule(between.seed, Mode.LIVENESS, tasks, (*faults, overtake))).run()
    finally:
        operators.cancel()
        with suppress(asyncio.CancelledError):
            await operators
    _tell(between, name)
    _met.update(between.met)
    for task_id in {violation.task_id for violation in verdict.violations}:
        await _tell_history(install, between, task_id)
    return [*map(str, verdict.violations), *await _undone(install, between)]


async def _undone(install: Installation, between: Between) -> list[str]:
    found: list[str] = []
    for task_id in sorted({one.task_id for one in between.done}):
        entries = entries_to_domain([entry async for entry in install.users[0].entries(task_id)])
        broken = undone(entries, [one for one in between.done if one.task_id == task_id])
        found += [f"{task_id}: {one}" for one in broken]
    return found


async def _tell_history(install: Installation, between: Between, task_id: str) -> None:
    """What happened to a task of which a law was broken, and what operators did to it."""
    with suppress(TenureError):
        async for entry in install.users[0].entries(task_id):
            body = str(entry.body).replace("\n", " ")[:300]
            print(f"{entry.sequence} {entry.record_time.ToJsonString()} {entry.actor} {body}")  # noqa: T201
    print([one for one in between.done if one.task_id == task_id])  # noqa: T201


def _tell(between: Between, name: str) -> None:
    """pytest shows it with a failure, or with -s."""
    told = {at: [action.value for action in actions] for at, actions in sorted(between.met.items())}
    missed = sorted(set(FAILPOINTS) - set(told))
    print(f"{name}, seed {between.seed}: {len(told)} failpoints, {len(between.done)} acknowledged: {told}")  # noqa: T201
    print(f"not met: {missed}")  # noqa: T201
