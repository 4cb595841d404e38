"""Replicas over one root of workspaces: a task's programs share their files wherever they run, and no others do."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.tools import OutcomeStatus
from tests.support.fix_tools import Grants, Outside, StartTools
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only a service that is root has uids to agree on"),
    pytest.mark.usefixtures("sandbox_detection"),
]

SETTINGS = {"python_wall_seconds": PATIENCE_SECONDS, "sandbox_slots": 2}
MEET = """
import os, time
os.umask(0o077)
mine, theirs = {mine!r}, {theirs!r}
os.mkdir("dir-" + mine)
open("dir-" + mine + "/secret", "w").write("from " + mine)
open("new-" + mine, "w").write(mine)
os.rename("new-" + mine, mine)
while not os.path.exists(theirs):
    time.sleep(0.01)
print(open("dir-" + theirs + "/secret").read())
open("dir-" + theirs + "/answer", "w").write("from " + mine)
"""
WAIT = "import os, time\nopen('here', 'w')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('gone')"


async def appears(path: Path) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not path.exists():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "first_uids", [(300_000, 310_000), pytest.param((300_000, 300_000), marks=pytest.mark.faults)], ids=str
)
async def test_programs_on_two_replicas_share_a_tasks_files(
    tool_service: StartTools, grants: Grants, outside: Outside, first_uids: Any
) -> None:
    one, other = [await tool_service(sandbox_first_uid=uid, **SETTINGS) for uid in first_uids]
    owner, stranger = grants.claim(), grants.claim()
    first = one.begin(owner, "1.0", "execute_python", code=MEET.format(mine="one", theirs="two"))
    await appears(outside.workspace(owner) / "one")
    apart = other.begin(stranger, "1.0", "execute_python", code=WAIT)
    await appears(outside.workspace(stranger) / "here")
    assert outside.workspace(stranger).stat().st_uid != outside.workspace(owner).stat().st_uid
    second = other.begin(owner, "1.1", "execute_python", code=MEET.format(mine="two", theirs="one"))
    seen = [(outcome.status, outcome.content) for outcome in await asyncio.gather(first, second)]
    assert seen == [(OutcomeStatus.SUCCEEDED, "from two"), (OutcomeStatus.SUCCEEDED, "from one")]
    owners = {path.lstat().st_uid for path in [outside.workspace(owner), *outside.workspace(owner).rglob("*")]}
    assert len(owners) == 1
    (outside.workspace(stranger) / "go").touch()
    assert (await apart).content == "gone"


async def test_a_killed_replicas_run_continues_elsewhere_with_files(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    one, other = [await tool_service(sandbox_first_uid=uid, **SETTINGS) for uid in (300_000, 310_000)]
    owner = grants.claim()
    lost = one.begin(owner, "1.0", "execute_python", code=MEET.format(mine="one", theirs="two"))
    await appears(outside.workspace(owner) / "one")
    await one.kill()
    lost.cancel()
    code = "import os\nprint(open('dir-one/secret').read())\nos.remove('dir-one/secret')\nos.rmdir('dir-one')"
    done = await other.outcome(owner, "1.1", "execute_python", code=code)
    assert (done.status, done.content) == (OutcomeStatus.SUCCEEDED, "from one")
    assert 310_000 <= outside.workspace(owner).stat().st_uid < 310_002


async def test_execute_python_fails_without_locks(tool_service: StartTools, grants: Grants, outside: Outside) -> None:
    outside.workspaces.mkdir()
    (outside.workspaces / ".sandboxes").symlink_to("elsewhere")
    tools = await tool_service(**SETTINGS)
    refused = await tools.outcome(grants.claim(), "1.0", "execute_python", code="print(1)")
    assert (refused.status, refused.detail) == (OutcomeStatus.FAILED, "SANDBOX_UNAVAILABLE")
