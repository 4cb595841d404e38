"""Tasks of one customer, submitted by each way at once, run one by one, and a burst of them is one run."""

from __future__ import annotations

import uuid

import httpx2

from checker.verify import verify
from tenure import Client, Source, SourceKind
from tenure.runtime.http.outbound_http import http_tls_context
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation
from tests.end_to_end.test_verify import recorded
from tests.support.patience import CALL_SECONDS

MODEL = "sim-hello"


async def submitted_by_http(installation: Installation, customer: str) -> str:
    source = {"kind": "CONTROL", "source_id": customer, "at_most": 1}
    async with httpx2.AsyncClient(
        verify=http_tls_context(), base_url=installation.stack.http_url, timeout=CALL_SECONDS, trust_env=False
    ) as http:
        response = await http.post("/v1/tasks", json={"goal": "look", "model": MODEL, "source": source})
    assert response.status_code == 201, response.text
    task = response.json()
    assert (task["source"]["at_most"], task["in_line"]) == (1, True)
    return str(task["task_id"])


async def test_tasks_of_a_customer_run_one_by_one(installation: Installation) -> None:
    address, customer = installation.stack.gateway_address, uuid.uuid4().hex
    async with Client(address) as client:
        source = Source(SourceKind.CONTROL, customer, at_most=1)
        first = await client.submit("look", model=MODEL, source=source, queue=f"served-by-no-worker-{customer}")
        task_ids = [first.id, await submitted_by_http(installation, customer)]
        burst = ("submit", "look", "--source", f"control/{customer}", "--at-most", "1", "--debounce", "200ms")
        for _ in range(2):
            done = await tenure("--json", *burst, "--model", MODEL, address=address)
            task_ids.append(done.values[0]["task_id"])
        listed = await tenure("list", "--source", f"control/{customer}", address=address)
        assert listed.out.count("QUEUED, in line") == 2, listed.out
        explained = await tenure("explain", task_ids[-1], address=address)
        assert "It waits in the line of its source" in explained.out
        await first.cancel(reason="enough")
    tasks = [await installation.ended(task_id) for task_id in task_ids]
    reasons = ["CANCEL_REQUESTED", "FINAL_ANSWER", "SUPERSEDED", "FINAL_ANSWER"]
    assert [task.reason for task in tasks] == reasons
    assert tasks[1].end_time.ToNanoseconds() < tasks[3].start_time.ToNanoseconds()
    assert verify(await recorded(installation, *task_ids)) == []
