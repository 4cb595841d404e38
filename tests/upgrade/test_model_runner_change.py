"""A rolling change of the workers from the direct way to the model runner and back, with tasks in flight."""

from __future__ import annotations

from pathlib import Path

import pytest

from devstack.postgres_process import PostgresProcess
from tests.upgrade.previous_release import REPOSITORY, previous_release
from tests.upgrade.two_releases import MEDIUM, SHORT, TwoReleases, two_releases

pytestmark = [pytest.mark.server, pytest.mark.nightly]

ADDRESS = "TENURE_WORKER_MODELS_ADDRESS"


async def change(install: TwoReleases, code: Path, *, runners: bool) -> None:
    """Replaces worker after worker. Without runners, they get the provider's key instead."""
    (runner,) = install.of_kind("models")
    provider = {name: value for name, value in runner.environment.items() if name.startswith("ANTHROPIC_")}
    for worker in install.of_kind("worker"):
        if runners:
            worker.environment[ADDRESS] = runner.address
        else:
            worker.environment.pop(ADDRESS, None)
            worker.environment |= provider
    await install.replace_all("worker", code)


async def ways(install: TwoReleases, task_id: str) -> list[bool]:
    """Of each change of the way that the task's model calls took: whether to a model runner."""
    attempts = [one.body.model_attempt for one in await install.entries(task_id) if one.body.HasField("model_attempt")]
    taken = [attempt.outlives_worker for attempt in attempts]
    return [way for before, way in zip([None, *taken], taken, strict=False) if way != before]


@pytest.mark.parametrize("release", ["this", "previous"])
async def test_workers_change_to_the_model_runner_and_back(
    tmp_path: Path, own_postgres: PostgresProcess, release: str
) -> None:
    """`release`: of the direct workers. One worker may hold the task's claim when the other one changes."""
    if release == "previous" and not previous_release().is_in_history:
        pytest.skip("this clone has no history with the previous release: git fetch --unshallow")
    async with two_releases(tmp_path, own_postgres, start="this", model_runner=True) as install:
        direct = install.before if release == "previous" else REPOSITORY
        await change(install, direct, runners=False)
        there = await install.begin(MEDIUM)
        await install.until(there, "tool_outcome")
        await change(install, REPOSITORY, runners=True)
        back = await install.begin(MEDIUM)
        await install.begin(SHORT)
        await install.until(back, "tool_outcome")
        await change(install, direct, runners=False)
        await install.begin(SHORT)
        await install.check_all_ended()
        assert (await ways(install, there))[:2] == [False, True]
        assert (await ways(install, back))[-2:] == [True, False]
