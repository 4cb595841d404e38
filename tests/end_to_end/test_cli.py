"""Every command against a whole installation: what it prints, what its JSON holds, how it exits."""

from __future__ import annotations

import asyncio
import signal
import uuid
from typing import Any

import pytest

from tenure.cli.exit_codes import Exit
from tenure.wire.common import state_name
from tests.end_to_end.command import Done, next_value, start, started, tenure
from tests.end_to_end.installation import Installation
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.server


@pytest.fixture
def run(installation: Installation) -> Any:
    """The command, at the shared installation."""

    async def at_installation(*arguments: str, stdin: str = "") -> Done:
        return await tenure(*arguments, address=installation.stack.gateway_address, stdin=stdin)

    return at_installation


async def submitted(run: Any, *arguments: str) -> str:
    done = await run("submit", "find out", "--model", "sim-hello", *arguments)
    assert done.code == Exit.OK
    value: str = done.out.strip()
    return value


async def test_submit_prints_the_id_alone_and_wait_prints_the_result(run: Any) -> None:
    task_id = await submitted(run)
    assert str(uuid.UUID(task_id)) == task_id
    done = await run("tasks", "wait", task_id)
    assert (done.code, done.out) == (Exit.OK, "Hello! I am a simulated model. What shall we do?\n")
    assert done.err.startswith("SUCCEEDED · 1 step · ")


async def test_a_goal_comes_from_stdin_and_every_option_is_sent(run: Any) -> None:
    done = await run(
        *("--json", "submit", "-", "--model", "sim-hello", "--system", "be brief", "--tools", "read_file,list_files"),
        *(
            "--max-tokens",
            "5000",
            "--max-steps",
            "7",
            "--timeout",
            "10m",
            "--max-output-tokens",
            "100",
            "--max-cost",
            "0.5",
        ),
        *("--priority", "high", "--queue", "elsewhere", "--label", "a=1", "--label", "b=2", "--on-in-doubt", "tell"),
        *("--loop", "of-my-own", "--on-lease-lost", "time-out", "--retries", "0"),
        stdin="from a pipe\n",
    )
    (task,) = done.values
    assert (task["goal"], task["system"], task["loop"]) == ("from a pipe", "be brief", "of-my-own")
    assert (task["tools"], task["max_output_tokens"]) == (["read_file", "list_files"], 100)
    assert task["limits"] == {
        "max_tokens": 5000,
        "max_cost_usd": 0.5,
        "money_cap": "SUBMITTED",
        "max_steps": 7,
        "timeout_seconds": 600.0,
    }
    assert (task["priority"], task["queue"], task["labels"]) == ("HIGH", "elsewhere", {"a": "1", "b": "2"})
    policy = task["policy"]
    assert (policy["on_in_doubt"], policy["on_lease_lost"]) == ("TELL_MODEL", "TIME_OUT")
    assert policy["retry"]["max_attempts"] == 1
    assert (await run("cancel", task["task_id"])).code == Exit.OK


async def test_submit_and_get_show_the_model_and_the_default_caps(run: Any) -> None:
    done = await run("submit", "x", "--queue", "elsewhere")
    assert "for claude-opus-4-8. Its caps: 2,000,000 tokens and $10.00; the cap in money is the default." in done.err
    shown = (await run("get", done.out.strip())).out
    assert "claude-opus-4-8" in shown
    assert "of $10.00" in shown
    assert "the cap in money is the default" in shown
    assert (await run("cancel", done.out.strip())).code == Exit.OK


async def test_submit_and_get_show_why_a_task_has_no_cap_in_money(run: Any) -> None:
    done = await run("submit", "x", "--model", "sim-hello", "--queue", "elsewhere")
    assert "Its caps: 2,000,000 tokens; no cap in money: the price of sim-hello is unknown." in done.err
    assert "no cap in money: the price of sim-hello is unknown" in (await run("get", done.out.strip())).out
    assert (await run("cancel", done.out.strip())).code == Exit.OK


async def test_no_tools_is_an_empty_list_and_not_an_absent_one(run: Any) -> None:
    (task,) = (await run("--json", "submit", "x", "--model", "sim-hello", "--no-tools")).values
    assert task["tools"] == []
    (task,) = (await run("--json", "submit", "x", "--model", "sim-hello")).values
    assert task["tools"] is None


async def test_a_repeated_request_id_is_the_same_task_or_refused(run: Any) -> None:
    request_id = uuid.uuid4().hex
    first = await submitted(run, "--request-id", request_id)
    assert await submitted(run, "--request-id", request_id) == first
    other = await run("submit", "another goal", "--request-id", request_id)
    assert other.code == Exit.REFUSED


async def test_watching_a_submit_shows_steps_calls_and_the_result_once(run: Any) -> None:
    done = await run("submit", "a note", "--model", "sim-one-tool", "--watch")
    assert done.code == Exit.OK
    assert "Step 1  " in done.out
    assert '→ write_file path="note.txt" content="a note"' in done.out
    assert '✓ write_file path="note.txt" content="a note"' in done.out
    assert "✓ SUCCEEDED · 2 steps · " in done.out
    assert done.out.count("Written. The tool said:") == 1
    assert "\x1b" not in done.out


async def test_a_task_that_fails_exits_with_1_and_says_why(run: Any) -> None:
    watched = await run("submit", "x", "--model", "sim-no-such-scenario", "--watch")
    assert watched.code == Exit.TASK_FAILED
    assert "✗ FAILED (MODEL_REJECTED)" in watched.out
    task_id = watched.out.split()[1]
    waited = await run("tasks", "wait", task_id)
    assert waited.code == Exit.TASK_FAILED
    assert waited.err.startswith("FAILED (MODEL_REJECTED): ")


async def test_waiting_too_short_is_5(run: Any) -> None:
    task_id = (await run("submit", "x", "--model", "sim-e2e-slow-answer")).out.strip()
    waited = await run("tasks", "wait", task_id, "--timeout", "300ms")
    assert waited.code == Exit.NOT_YET
    assert waited.err == f"tenure: task {task_id} has not ended within 0.3 s\n"
    cancelled = await run("cancel", task_id, "--reason", "enough")
    assert cancelled.code == Exit.OK
    assert (await run("tasks", "wait", task_id)).code == Exit.TASK_FAILED
    assert "enough" in (await run("tasks", "entries", task_id)).out
    (again,) = (await run("--json", "cancel", task_id)).values
    assert again["state"] == "CANCELLED"


async def test_impossible_requests_exit_with_3_and_one_sentence(run: Any) -> None:
    task_id = await submitted(run)
    await run("tasks", "wait", task_id)
    refusals = [
        await run("get", str(uuid.uuid4())),
        await run("get", "ffffffff"),
        await run("get", "not-an-id"),
        await run("cancel", task_id),
        await run("submit", "x", "--timeout", "30h"),
        await run("tasks", "entries", str(uuid.uuid4())),
        await run("watch", str(uuid.uuid4())),
    ]
    for refused in refusals:
        assert refused.code == Exit.REFUSED, refused
        assert refused.out == ""
        assert refused.err.startswith("tenure: ")
        assert refused.err.count("\n") == 1


async def test_a_task_is_found_by_an_unambiguous_id_prefix(run: Any) -> None:
    first, second = await submitted(run), await submitted(run)
    (item,) = (await run("--json", "get", second[:18])).values
    assert item["task_id"] == second
    both = await run("get", first[:4])
    assert both.code == Exit.REFUSED
    assert f"several ids of tasks begin with {first[:4]}" in both.err
    assert second[:13] in both.err
    assert second not in both.err


async def test_list_shows_what_is_asked_for_newest_first(run: Any) -> None:
    label = f"batch={uuid.uuid4().hex}"
    first, second = await submitted(run, "--label", label), await submitted(run, "--label", label)
    await run("tasks", "wait", first)
    await run("tasks", "wait", second)
    listed = (await run("--json", "list", "--label", label, "--state", "succeeded")).values
    assert [task["task_id"] for task in listed] == [second, first]
    assert len((await run("--json", "list", "--label", label, "--limit", "1")).values) == 1
    assert (await run("--json", "list", "--label", label, "--state", "FAILED")).out == ""
    table = (await run("list", "--label", label)).out.splitlines()
    assert [line.split()[:2] for line in table[1:]] == [[second[:13], "SUCCEEDED"], [first[:13], "SUCCEEDED"]]
    none = await run("list", "--label", "nobody=has")
    assert (none.code, none.out) == (Exit.OK, "")
    assert "no task matches" in none.err


async def test_another_tenants_tasks_are_not_there(run: Any) -> None:
    task_id = await submitted(run)
    assert (await run("--tenant", "others", "get", task_id)).code == Exit.REFUSED


async def test_get_says_how_a_task_stands(run: Any) -> None:
    task_id = await submitted(run)
    await run("tasks", "wait", task_id)
    shown = (await run("get", task_id)).out
    for expected in (task_id, "SUCCEEDED", "find out", "1 step, opened 1 time", "Hello! I am a simulated model."):
        assert expected in shown


async def test_entries_are_the_whole_ledger_in_order(run: Any) -> None:
    task_id = await submitted(run)
    await run("tasks", "wait", task_id)
    entries = (await run("--json", "tasks", "entries", task_id)).values
    assert [entry["sequence"] for entry in entries] == list(range(1, len(entries) + 1))
    assert (entries[0]["kind"], entries[0]["goal"]) == ("submitted", "find out")
    assert (entries[-1]["kind"], entries[-1]["state"]) == ("transition", "SUCCEEDED")
    (contract,) = (await run("--json", "-v", "tasks", "entries", task_id, "--after", str(len(entries) - 1))).values
    assert contract["body"]["transition"]["to_state"] == "TASK_STATE_SUCCEEDED"
    assert (await run("--json", "tasks", "entries", task_id, "--after", "3")).values == entries[3:]
    lines = (await run("tasks", "entries", task_id)).out.splitlines()
    assert len(lines) == len(entries)
    assert lines[-1].endswith("RUNNING → SUCCEEDED (FINAL_ANSWER)")


async def test_a_running_task_has_a_claim_and_workers_list_it(run: Any, installation: Installation) -> None:
    task_id = await installation.submit("sim-e2e-slow-answer")
    attempt = await installation.until(task_id, "model_attempt")
    (claim,) = (await run("--json", "workers", "claims", task_id)).values
    assert (claim["task_id"], claim["epoch"], claim["reason"]) == (task_id, attempt.epoch, "SUBMITTED")
    assert 0 < claim["remaining_seconds"] <= 5
    table, verbose = (await run("workers", "claims")).out, (await run("workers", "claims", "-v")).out
    epoch = f"{attempt.epoch >> 40}.{attempt.epoch & (1 << 40) - 1}"
    assert (task_id[:13] in table, epoch in table, epoch in verbose) == (True, False, True)
    workers = {worker["worker_id"]: worker for worker in (await run("--json", "workers", "list")).values}
    assert set(workers) == {"worker-1", "worker-2"}
    assert workers[claim["worker"]]["held_tasks"] >= 1
    assert "worker-2" in (await run("workers", "list")).out
    await run("cancel", task_id)
    await run("tasks", "wait", task_id)
    async with asyncio.timeout(PATIENCE_SECONDS):  # the claim is deleted after the end was committed
        while (nobody := await run("workers", "claims", task_id)).out:
            pass
    assert (nobody.code, nobody.out, nobody.err) == (Exit.OK, "", "no worker holds the task\n")


async def test_a_task_without_lost_claims_has_no_refusals(run: Any) -> None:
    task_id = await submitted(run)
    done = await run("tasks", "refusals", task_id)
    assert (done.code, done.out, done.err) == (Exit.OK, "", "no write was refused\n")
    assert (await run("--json", "tasks", "refusals", task_id)).out == ""


async def test_a_watch_for_machines_is_one_event_per_line(run: Any) -> None:
    task_id = await submitted(run)
    done = await run("--json", "watch", task_id)
    assert done.code == Exit.OK
    sequences = [event["sequence"] for event in done.values if event["sequence"]]
    assert sequences == list(range(1, len(sequences) + 1))
    later = await run("--json", "watch", task_id, "--after", "2", "--no-live")
    assert [event["sequence"] for event in later.values] == sequences[2:]


async def test_watching_after_an_entry_tells_only_what_follows(run: Any) -> None:
    task_id = await submitted(run)
    whole = await run("watch", task_id)
    tail = await run("watch", task_id, "--after", "4")
    assert "takes the task" in whole.out
    assert "takes the task" not in tail.out
    assert "✓ SUCCEEDED" in tail.out


async def test_live_text_reaches_a_watcher_in_pieces_that_fit(installation: Installation) -> None:
    address = installation.stack.gateway_address
    async with started("--json", "submit", "x", "--model", "sim-e2e-slow-answer", "--watch", address=address) as watch:
        task_id = (await next_value(watch))["task_id"]
        text = ""
        while len(text) < 50:
            event = await next_value(watch)
            if event["kind"] == "live_text":
                assert event["offset"] == len(text)
                text += event["text"]
        assert text.startswith("word word ")
    await installation.client.cancel(task_id)


async def test_ctrl_c_stops_watching_and_not_the_task(installation: Installation) -> None:
    task_id = await installation.submit("sim-approval")
    waiting = await installation.in_state(task_id, "WAITING_USER")
    watch = await start("watch", task_id, address=installation.stack.gateway_address)
    assert watch.stdout is not None
    await watch.stdout.readline()  # it watches
    watch.send_signal(signal.SIGINT)
    _, err = await watch.communicate()
    assert watch.returncode == Exit.INTERRUPTED
    assert f"the task continues. Watch it again: tenure watch {task_id[:13]}" in err.decode()
    await installation.client.resume(task_id, waiting.wait.wait_id, decision="approve")
    assert state_name((await installation.ended(task_id)).state) == "SUCCEEDED"


async def test_a_submit_with_a_misspelt_tool_names_the_nearest(installation: Installation) -> None:
    refused = await tenure("submit", "hi", "--tools", "raed_file", address=installation.stack.gateway_address)
    assert refused.code == Exit.REFUSED
    assert "there is no tool 'raed_file'; did you mean read_file" in refused.err
