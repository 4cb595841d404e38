"""A call that must not happen twice, whose runner died in the middle of it: from the doubt to its task's success."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from tenure.v1 import task_pb2, tool_pb2
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation, check_whole
from tests.support.patience import PATIENCE_SECONDS

LINE = "at most once"


async def killed_in_mid_calls(install: Installation, count: int, held: Path) -> list[tuple[str, str]]:
    """So many tasks (with the file each writes to) whose calls were marked STARTED when the tool service was killed."""
    tools = install.stack.services["tools"]
    await tools.drain()
    tools.start({"TENURE_FAILPOINTS": f"tools.before_effect=wait({held})"})
    await tools.wait_ready()
    files = [uuid.uuid4().hex for _ in range(count)]
    tasks = [(await install.submit("sim-e2e-unsafe-at-once", file), file) for file in files]
    async with asyncio.timeout(PATIENCE_SECONDS):
        for task_id, _ in tasks:
            while not await has_started(install, task_id):
                await asyncio.sleep(0.02)
    tools.kill()
    await install.died(tools)
    await tools.restart()
    for task_id, _ in tasks:
        assert (await install.in_state(task_id, "WAITING_USER")).reason == "TOOL_IN_DOUBT"
    return tasks


async def has_started(install: Installation, task_id: str) -> bool:
    calls = [call async for page in install.client.calls(task_id) for call in page.calls]
    return any(call.record.state == tool_pb2.CALL_STATE_STARTED for call in calls)


async def proven_gone(install: Installation, task_id: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not [one async for one in install.client.in_doubt(task_id) if one.call.runner_gone]:
            await asyncio.sleep(0.05)


async def check_success(install: Installation, task_id: str, status: int, detail: str, said: str) -> None:
    """The task went on to its success, and its agent read this about the call."""
    task = await install.ended(task_id)
    assert task.state == task_pb2.TASK_STATE_SUCCEEDED, f"{task.reason}: {task.message}"
    entries = await install.entries(task_id)
    check_whole(entries)
    (outcome,) = [one.body.tool_outcome.outcome for one in entries if one.body.HasField("tool_outcome")]
    assert (outcome.status, outcome.detail, outcome.call_attempt) == (status, detail, 2)
    assert said in outcome.content


async def test_each_of_the_three_resolutions_lets_the_task_succeed(
    own_installation: Installation, tmp_path: Path
) -> None:
    install = own_installation
    address = install.stack.gateway_address
    tasks = await killed_in_mid_calls(install, 3, tmp_path / "held")
    (happened, its_file), (not_happened, again_file), (unknown, lost_file) = tasks
    await proven_gone(install, not_happened)

    shown = await tenure("tools", "in-doubt", address=address)
    for task_id, _ in tasks:
        assert f"tenure tools resolve {task_id[:13]} 1.0 --happened" in shown.out
    assert shown.out.count("proven gone") == 3
    assert LINE in shown.out
    assert "tenure tools in-doubt" in (await tenure("explain", happened, address=address)).out
    assert "tenure tools in-doubt" in (await tenure("get", happened, address=address)).out

    path = tmp_path / "receipt"
    path.write_text("receipt 42")
    said = ("--happened", "--result", f"@{path}"), ("--did-not-happen",), ("--abandon",)
    for (task_id, _), words in zip(tasks, said, strict=True):
        done = await tenure("tools", "resolve", task_id, "1.0", *words, "--reason", "I looked", address=address)
        assert (done.code, done.out.splitlines()[0].split(";")[0]) == (0, "resolved"), done.err
    late = await tenure("tools", "resolve", happened, "1.0", "--abandon", "--reason", "too late", address=address)
    assert late.code == 3

    succeeded, in_doubt = tool_pb2.OUTCOME_STATUS_SUCCEEDED, tool_pb2.OUTCOME_STATUS_IN_DOUBT
    await check_success(install, happened, succeeded, "HAPPENED", "receipt 42")
    await check_success(install, not_happened, succeeded, "", "Appended.")
    await check_success(install, unknown, in_doubt, "ABANDONED", "I looked")
    assert [install.effects(file) for file in (its_file, again_file, lost_file)] == [[], [LINE], []]
    entries = await tenure("tasks", "entries", happened, address=address)
    assert "resolves call 1.0: it happened" in entries.out


async def test_invalid_answer_is_refused_early(installation: Installation) -> None:
    address = installation.stack.gateway_address
    task_id = str(uuid.uuid4())
    for wrong in (
        (),
        ("--abandon", "--result", "x"),
        ("--happened", "--runner-is-gone"),
        ("--happened", "--result", "@/nowhere"),
    ):
        done = await tenure("tools", "resolve", task_id, "1.0", *wrong, "--reason", "r", address=address)
        assert done.code == 2
    done = await tenure("tools", "resolve", task_id, "1.0", "--abandon", "--reason", "r", address=address)
    assert done.code == 3
