"""The HTTP server of a running installation: every route, and that it is the same API."""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from tenure import Client as SdkClient
from tenure.domain.waits import ALLOW
from tenure.runtime.http.outbound_http import http_tls_context
from tests.end_to_end.installation import Installation
from tests.support.cutting_proxy import CuttingProxy
from tests.support.event_source import EventSource, ServerEvent
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

pytestmark = pytest.mark.server


@pytest.fixture
async def http(installation: Installation) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(
        verify=http_tls_context(), base_url=installation.stack.http_url, timeout=CALL_SECONDS, trust_env=False
    ) as client:
        yield client


async def answer(http: httpx2.AsyncClient, method: str, path: str, status: int = 200, **options: Any) -> Any:
    response = await http.request(method, path, **options)
    assert response.status_code == status, f"{method} {path}: {response.status_code} {response.text}"
    return response.json() if response.content else None


async def submitted(http: httpx2.AsyncClient, model: str, **fields: Any) -> str:
    task = await answer(http, "POST", "/v1/tasks", 201, json={"goal": uuid.uuid4().hex, "model": model, **fields})
    return str(task["task_id"])


async def waiting(http: httpx2.AsyncClient, task_id: str) -> Any:
    """The task when it waits for a person."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            task = await answer(http, "GET", f"/v1/tasks/{task_id}")
            if task["state"] == "WAITING_USER":
                return task
            await asyncio.sleep(0.05)


async def test_a_task_by_http_is_the_task_of_the_client(installation: Installation, http: httpx2.AsyncClient) -> None:
    body = {
        "goal": "by HTTP",
        "model": "sim-hello",
        "max_tokens": 100_000,
        "max_steps": 3,
        "timeout": 600,
        "labels": {"door": "http"},
        "priority": "HIGH",
        "policy": {"retry": {"max_attempts": 2}, "escalations": {"person": [{"after_seconds": 60}]}},
    }
    task = await answer(http, "POST", "/v1/tasks", 201, json=body)
    waited = await answer(http, "GET", f"/v1/tasks/{task['task_id']}/wait", params={"timeout_seconds": 60})
    assert (waited["ended"], waited["task"]["state"]) == (True, "SUCCEEDED")
    read = await answer(http, "GET", f"/v1/tasks/{task['task_id']}")
    assert await answer(http, "GET", f"/v1/tasks/{task['task_id'][:30]}") == read, "the first characters of the id"
    in_tree = {"root_task_id": task["task_id"][:30]}
    assert (await answer(http, "GET", "/v1/tasks", params=in_tree))["tasks"] == [read], "also in a query"
    searched = {"text": "http", "label": "door:http", "since": read["created_at"], "min_duration": 0.000001}
    assert (await answer(http, "GET", "/v1/tasks", params=searched))["tasks"][-1] == read
    assert (await answer(http, "GET", "/v1/tasks/count", params={"task_id": task["task_id"]})) == {
        "counts": [{"state": "SUCCEEDED", "count": 1, "at_least": False}]
    }
    async with SdkClient(installation.stack.gateway_address) as client:
        by_grpc = await client.get(task["task_id"])
        entries = [event.to_json() async for event in by_grpc.entries()]
        assert read == by_grpc.to_json()
        assert await answer(http, "GET", f"/v1/tasks/{task['task_id']}/entries") == {"entries": entries, "more": False}
    assert (read["limits"]["max_tokens"], read["limits"]["max_steps"], read["priority"]) == (100_000, 3, "HIGH")
    assert read["policy"]["retry"]["max_attempts"] == 2
    assert read["policy"]["escalations"]["person"][0]["after_seconds"] == 60
    found = await answer(http, "GET", "/v1/tasks", params={"label": "door:http", "state": "SUCCEEDED,FAILED"})
    assert task["task_id"] in {one["task_id"] for one in found["tasks"]}
    explained = await answer(http, "GET", f"/v1/tasks/{task['task_id']}/explain")
    assert explained["lines"]
    prompt = await answer(http, "GET", f"/v1/tasks/{task['task_id']}/prompt", params={"step": 1})
    assert [[part["text"] for part in one["parts"]] for one in prompt["messages"]] == [[task["goal"]]]
    trace = await answer(http, "GET", f"/v1/tasks/{task['task_id']}/trace")
    assert {row["kind"] for row in trace["rows"]} >= {"AGENT", "MODEL"}
    assert {row["span_id"] for row in trace["rows"]} <= {span["span_id"] for span in trace["spans"]}
    tree = await answer(http, "GET", f"/v1/tasks/{task['task_id']}/tree")
    assert [one["task_id"] for one in tree["tasks"]] == [task["task_id"]]


async def test_a_repeat_with_the_same_idempotency_key_is_one_task(http: httpx2.AsyncClient) -> None:
    body, headers = {"goal": "once", "model": "sim-hello"}, {"Idempotency-Key": uuid.uuid4().hex}
    first, second = [await answer(http, "POST", "/v1/tasks", 201, json=body, headers=headers) for _ in range(2)]
    assert first["task_id"] == second["task_id"]
    problem = await answer(http, "POST", "/v1/tasks", 409, json={**body, "goal": "other"}, headers=headers)
    assert (problem["code"], problem["metadata"]["task_id"]) == ("REQUEST_ID_REUSED", first["task_id"])


async def test_events_end_for_good(http: httpx2.AsyncClient) -> None:
    task_id = await submitted(http, "sim-e2e-keyed-paced")
    source = EventSource(f"{str(http.base_url).rstrip('/')}/v1/tasks/{task_id}/events")
    async with asyncio.timeout(PATIENCE_SECONDS):
        events = [event async for event in source.events()]
    entries = [event for event in events if event.kind not in {"live_text", "end"}]
    listed = (await answer(http, "GET", f"/v1/tasks/{task_id}/entries"))["entries"]
    assert [event.data for event in entries] == listed
    assert [event.id for event in entries] == [str(entry["sequence"]) for entry in listed]
    assert [event.kind for event in entries] == [entry["kind"] for entry in listed]
    assert any(event.kind == "live_text" for event in events)
    assert (events[-1].kind, events[-1].data) == ("end", {"sequence": len(listed), "state": "SUCCEEDED"})
    assert source.connections == 2  # the second got 204
    tail = EventSource(f"{str(http.base_url).rstrip('/')}/v1/tasks/{task_id}/events?after_sequence={len(listed) - 1}")
    assert [event.kind async for event in tail.events()] == ["transition", "end"]


CUT_SECONDS = 0.5
"""For one connection, on a machine many times slower than usual."""


def cut_lengths(count: int) -> itertools.chain[int]:
    """Lengths of answers: every one up to where the first event is complete, then any."""
    chosen = random.Random(7)
    return itertools.chain(range(1, 601), (chosen.randint(300, 6000) for _ in range(count - 600)))


@pytest.mark.faults
async def test_a_client_cut_a_thousand_times_sees_each_event_once(http: httpx2.AsyncClient) -> None:
    task_id = await submitted(http, "sim-e2e-keyed-paced")
    await answer(http, "GET", f"/v1/tasks/{task_id}/wait", params={"timeout_seconds": 100})
    listed = (await answer(http, "GET", f"/v1/tasks/{task_id}/entries"))["entries"]
    seen = list[list[ServerEvent]]()
    lengths = cut_lengths(1000)
    proxy = CuttingProxy(str(http.base_url.host), int(http.base_url.port or 0), iter(lengths))
    await proxy.start()
    try:
        async with asyncio.timeout(CUT_SECONDS * 1000):
            while proxy.cuts < 1000:  # each client begins anew when it has seen everything
                source = EventSource(f"http://{proxy.address}/v1/tasks/{task_id}/events")
                seen.append([event async for event in source.events()])
    finally:
        await proxy.stop()
    assert proxy.cuts == 1000
    for events in seen:
        assert [event.data for event in events if event.kind != "end"] == listed
        assert {event.kind for event in events[len(listed) :]} == {"end"}  # cut between it and its 204: it comes again


async def test_changes_of_all_tasks(http: httpx2.AsyncClient) -> None:
    label = uuid.uuid4().hex
    source = EventSource(f"{str(http.base_url).rstrip('/')}/v1/changes?label=mark:{label}")
    states, cursor = list[str](), ""
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(source.events()) as events:
        first = await anext(events)
        assert (first.kind, first.id) == ("heartbeat", first.data["cursor"])
        task_id = await submitted(http, "sim-hello", labels={"mark": label})
        async for event in events:
            if event.kind == "change":
                assert (event.data["task_id"], event.data["task"]["task_id"]) == (task_id, task_id)
                states.append(event.data["state"])
                cursor = cursor or event.id
            if states[-1:] == ["SUCCEEDED"]:
                break
    assert states[0] == "QUEUED"
    again = EventSource(f"{str(http.base_url).rstrip('/')}/v1/changes?label=mark:{label}&after={cursor}")
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(again.events()) as events:
        repeated = [event.data["state"] async for event in _some(events, len(states) - 1)]
    assert repeated == states[1:]


async def _some(events: Any, count: int) -> AsyncIterator[ServerEvent]:
    async for event in events:
        if event.kind == "change":
            yield event
            count -= 1
        if not count:
            return


async def test_a_wait_is_answered(http: httpx2.AsyncClient) -> None:
    task_id = await submitted(http, "sim-e2e-unsafe-at-once", approve_tools=["append_record_unsafe"])
    task = await waiting(http, task_id)
    wait = task["wait"]
    assert wait["kind"] == "TOOL_APPROVAL"
    listed = await answer(http, "GET", "/v1/waits")
    assert task_id in {one["task_id"] for one in listed["tasks"]}
    body = {"wait_id": wait["wait_id"], "decision": ALLOW, "call_digest": wait["call_digest"], "comment": "yes"}
    other = await answer(http, "POST", f"/v1/tasks/{task_id}/resume", 409, json={**body, "wait_id": uuid.uuid4().hex})
    assert other["code"] == "WAIT_OVER"
    await answer(http, "POST", f"/v1/tasks/{task_id}/resume", json=body)
    waited = await answer(http, "GET", f"/v1/tasks/{task_id}/wait", params={"timeout_seconds": 60})
    assert waited["task"]["state"] == "SUCCEEDED"


async def test_cancel_message_and_fork(http: httpx2.AsyncClient) -> None:
    task_id = await submitted(http, "sim-e2e-keyed-paced")
    key, message = {"Idempotency-Key": uuid.uuid4().hex}, {"text": "faster", "interrupt": True}
    for _ in range(2):
        await answer(http, "POST", f"/v1/tasks/{task_id}/messages", json=message, headers=key)
    await answer(http, "POST", f"/v1/tasks/{task_id}/cancel", json={"reason": "enough"})
    waited = await answer(http, "GET", f"/v1/tasks/{task_id}/wait", params={"timeout_seconds": 60})
    assert waited["task"]["state"] == "CANCELLED"
    entries = (await answer(http, "GET", f"/v1/tasks/{task_id}/entries"))["entries"]
    messages = [entry for entry in entries if entry["kind"] == "user_message"]
    assert [entry["interrupt"] for entry in messages if entry["text"] == "faster"] == [True]
    of_kind = {"kind": "user_message"}
    assert (await answer(http, "GET", f"/v1/tasks/{task_id}/entries", params=of_kind))["entries"] == messages
    fork = await answer(
        http, "POST", f"/v1/tasks/{task_id}/fork", 201, json={"step": 0, "model": "sim-hello", "message": "again"}
    )
    assert fork["forked_from_task_id"] == task_id


async def test_many_tasks_are_cancelled_and_requeued(http: httpx2.AsyncClient) -> None:
    mark = uuid.uuid4().hex[:12]
    task_ids = [await submitted(http, "sim-hello", labels={"mark": mark}, queue="no-worker") for _ in range(3)]
    cancel: dict[str, Any] = {"act": "CANCEL", "filter": {"label": {"mark": mark}}}
    counted = await answer(http, "POST", "/v1/tasks/act", json={**cancel, "dry_run": True})
    assert counted["groups"] == [
        {"state": "QUEUED", "reason": "SUBMITTED", "count": 3, "task_ids": sorted(task_ids, reverse=True)}
    ]
    key = {"Idempotency-Key": f"operation-{mark}"}
    done = await answer(http, "POST", "/v1/tasks/act", json=cancel, headers=key)
    assert (done["operation_id"], done["next_page_token"], done["groups"]) == (f"operation-{mark}", "", [])
    assert {one["task_id"]: (one["result"], one["state"]) for one in done["outcomes"]} == dict.fromkeys(
        task_ids, ("DONE", "CANCELLED")
    )
    listed = await answer(http, "GET", "/v1/tasks", params={"label": f"mark:{mark}", "reason": "CANCEL_REQUESTED"})
    assert {one["task_id"] for one in listed["tasks"]} == set(task_ids)
    requeue = {"act": "REQUEUE", "filter": {"task_id": task_ids[:1]}, "reason": "by mistake", "tasks_per_second": 100}
    again = await answer(http, "POST", "/v1/tasks/act", json=requeue)
    assert [(one["task_id"], one["result"]) for one in again["outcomes"]] == [(task_ids[0], "DONE")]
    of_tree = {"act": "CANCEL", "filter": {"root_task_id": task_ids[0]}, "dry_run": True}
    counted = await answer(http, "POST", "/v1/tasks/act", json=of_tree)
    assert [(group["count"], group["task_ids"]) for group in counted["groups"]] == [(1, task_ids[:1])]
    refused = await answer(http, "POST", "/v1/tasks/act", 400, json={"act": "CANCEL", "filter": {}})
    assert refused["violations"][0]["field"] == "filter"


async def test_files(http: httpx2.AsyncClient) -> None:
    task_id = await submitted(http, "sim-e2e-noting")
    await answer(http, "GET", f"/v1/tasks/{task_id}/wait", params={"timeout_seconds": 100})
    listed = await answer(http, "GET", f"/v1/tasks/{task_id}/files")
    assert listed["files"]
    assert listed["used_files"] >= 1
    file = next(one for one in listed["files"] if one["kind"] == "FILE")
    response = await http.get(f"/v1/tasks/{task_id}/files/{file['path']}")
    assert (response.status_code, len(response.content)) == (200, file["size_bytes"])
    part: dict[str, str | int] = {"offset": 1, "version": response.headers["etag"]}
    rest = await http.get(f"/v1/tasks/{task_id}/files/{file['path']}", params=part)
    assert (rest.status_code, rest.content) == (200, response.content[1:])
    assert response.headers["content-disposition"] == "attachment"
    assert "sandbox" in response.headers["content-security-policy"]
    problem = await answer(http, "GET", f"/v1/tasks/{task_id}/files/no/such", 404)
    assert problem["code"] == "FILE_NOT_FOUND"


async def test_schedules(http: httpx2.AsyncClient) -> None:
    name = f"s-{uuid.uuid4().hex[:12]}"
    body = {
        "name": name,
        "cron": "0 7 * * *",
        "time_zone": "Europe/Berlin",
        "task": {"goal": "go", "model": "sim-hello"},
    }
    made = await answer(http, "POST", "/v1/schedules", 201, json=body)
    assert (made["name"], made["task"]["goal"], made["overlap_policy"]) == (name, "go", "SKIP")
    assert name in {one["name"] for one in (await answer(http, "GET", "/v1/schedules"))["schedules"]}
    changed = await answer(
        http, "PATCH", f"/v1/schedules/{name}", json={"cron": "5 7 * * *", "expected_revision": made["revision"]}
    )
    assert (changed["cron"], changed["task"]["goal"]) == ("5 7 * * *", "go")
    assert (await answer(http, "POST", f"/v1/schedules/{name}/pause", json={"reason": "holidays"}))["paused"]
    assert not (await answer(http, "POST", f"/v1/schedules/{name}/resume"))["paused"]
    task = await answer(http, "POST", f"/v1/schedules/{name}/trigger", json={"request_id": "once"})
    runs = (await answer(http, "GET", f"/v1/schedules/{name}"))["runs"]
    assert [run["task_id"] for run in runs] == [task["task_id"]]
    wrong = await answer(http, "POST", "/v1/schedules", 400, json={**body, "task": {"goal": "go", "max_steps": -1}})
    assert wrong["violations"][0]["field"] == "task.max_steps"
    wrong = await answer(http, "POST", "/v1/schedules", 400, json={**body, "task": {"goal": "go", "max_cost": -1}})
    assert wrong["violations"][0]["field"] == "task.max_cost"
    assert await answer(http, "DELETE", f"/v1/schedules/{name}") == {"deleted": True}


async def test_operations(http: httpx2.AsyncClient) -> None:
    await submitted(http, "sim-hello")
    workers = await answer(http, "GET", "/v1/workers")
    assert {one["worker_id"] for one in workers["workers"]} == {"worker-1", "worker-2"}
    page = await answer(http, "GET", "/v1/workers?page_size=1")
    rest = await answer(http, "GET", "/v1/workers", params={"page_token": page["next_page_token"]})
    assert [[one["worker_id"] for one in each["workers"]] for each in (page, rest)] == [["worker-1"], ["worker-2"]]
    assert rest["next_page_token"] == ""
    for path, name in {
        "/v1/claims": "claims",
        "/v1/queues": "queues",
        "/v1/leases": "leases",
        "/v1/calls-in-doubt": "calls",
        "/v1/effects?tool=append_record&key=file:a": "effects",
        "/v1/tools": "tools",
        "/v1/tenants": "tenants",
        "/v1/webhooks": "webhooks",
        "/v1/audit": "records",
        "/v1/tenants/default/usage?by=MODEL": "sums",
    }.items():
        assert isinstance((await answer(http, "GET", path))[name], list), path
    assert (await answer(http, "GET", "/v1/tenants/default"))["tenant"] == "default"
    me = await answer(http, "GET", "/v1/me", headers={"Tenure-Tenant": "acme"})
    assert (me["tenant"], me["subject"], me["authenticated"]) == ("acme", "tenant/acme", False)
    assert "OPERATE" in me["permissions"]
    problem = await answer(http, "POST", "/v1/workers/nobody/drain", 404, json={"reason": "it smokes"})
    assert problem["code"] == "WORKER_NOT_FOUND"
    problem = await answer(http, "GET", "/v1/webhooks/nothing", 404)
    assert problem["status"] == 404
    unknown = uuid.uuid4()
    resolution = {"call_attempt": 1, "resolution": "ABANDONED", "reason": "gone"}
    await answer(http, "POST", f"/v1/tasks/{unknown}/calls/1.0/resolve", 404, json=resolution)
    assert await answer(http, "GET", "/healthz") == {"status": "SERVING"}


async def test_acts_of_an_operator_on_a_task(http: httpx2.AsyncClient) -> None:
    task_id = await submitted(http, "sim-hello", queue="no-worker", max_cost=1, max_tokens=1000)
    path, why = f"/v1/tasks/{task_id}", {"reason": "by hand"}
    until = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    body = {**why, "question": "Is the bank open?", "until": until}
    held = await answer(http, "POST", f"{path}/begin-wait", json=body)
    assert (held["state"], held["wait"]["question"]) == ("WAITING_USER", "Is the bank open?")
    aging = await answer(http, "GET", "/v1/aging", params={"state": "WAITING_USER", "page_size": 500})
    assert task_id in {one["task_id"] for one in aging["tasks"]}
    granted = await answer(http, "POST", f"{path}/grant-budget", json={**why, "extra_tokens": 500, "extra_cost": 0.5})
    assert (granted["budget"]["max_tokens"], granted["budget"]["max_cost_usd"]) == (1500, 1.5)
    ended = await answer(http, "POST", f"{path}/close-out", json={**why, "to_state": "FAILED"})
    assert (ended["state"], ended["reason"]) == ("FAILED", "OPERATOR_CLOSE_OUT")
    key = {"Idempotency-Key": uuid.uuid4().hex}
    again = [await answer(http, "POST", f"{path}/requeue", json=why, headers=key) for _ in range(2)]
    assert [(one["state"], one["attempt"]) for one in again] == [("QUEUED", 2)] * 2
    problem = await answer(http, "POST", f"{path}/transfer", 409, json={**why, "to_worker_id": "worker-1"})
    assert problem["code"] == "WRONG_STATE"
    await answer(http, "POST", f"{path}/cancel")
    pruned = await answer(http, "DELETE", path, params=why)
    assert pruned == {"task_ids": [task_id], "more": False}
    await answer(http, "GET", path, 404)


async def test_an_operator_administers_a_tenant(http: httpx2.AsyncClient) -> None:
    name = uuid.uuid4().hex[:12]
    as_tenant = {"Tenure-Tenant": f"t-{name}"}
    await answer(http, "GET", "/v1/agents/missing", 404)
    assert (await answer(http, "GET", "/v1/agents", headers=as_tenant))["agents"] == []
    agent = {"name": "support", "model": "sim-hello", "max_cost": 2, "tools": []}
    assert (await answer(http, "POST", "/v1/agents", json=agent, headers=as_tenant))["created"]
    assert (await answer(http, "POST", "/v1/agents", json=agent, headers=as_tenant))["revision"]["revision"] == 1
    wrong = await answer(http, "POST", "/v1/agents", 400, json={**agent, "max_output_tokens": 10**6}, headers=as_tenant)
    assert wrong["violations"][0]["field"] == "max_output_tokens"
    assert "built-in" in {one["name"] for one in (await answer(http, "GET", "/v1/tool-sources"))["sources"]}
    made = await answer(
        http, "POST", "/v1/api-keys", 201, json={"name": "ci", "permissions": ["WRITE"]}, headers=as_tenant
    )
    key_id = made["api_key"]["key_id"]
    assert made["secret"]
    revoked = await answer(http, "DELETE", f"/v1/api-keys/{key_id}", headers=as_tenant)
    assert (revoked["tenant"], revoked["revoked_at"] is None) == (as_tenant["Tenure-Tenant"], False)
    keys = await answer(http, "GET", "/v1/api-keys", params={"all": "true"}, headers=as_tenant)
    assert [one["key_id"] for one in keys["api_keys"]] == [key_id]
    group = {"name": "finance", "members": ["user/ann"]}
    assert (await answer(http, "POST", "/v1/approver-groups", json=group, headers=as_tenant))["members"] == ["user/ann"]
    assert len((await answer(http, "GET", "/v1/approver-groups", headers=as_tenant))["groups"]) == 1
    assert await answer(http, "DELETE", "/v1/approver-groups/finance", headers=as_tenant) == {"deleted": True}
    rule = {"name": "none", "tool": "refund", "verdict": "ALLOW", "bounds": {"count": 5, "window_seconds": 86_400}}
    kept = await answer(http, "POST", "/v1/tool-rules", json=rule, headers=as_tenant)
    assert (kept["version"], kept["bounds"]["window_seconds"], kept["bounds"]["beyond"]) == (1, 86_400, "DENY")
    assert (await answer(http, "GET", "/v1/tool-rules", headers=as_tenant))["rules"] == [kept]
    tried = {"since": "2026-01-01T00:00:00Z", "name": "none"}
    assert (await answer(http, "POST", "/v1/tool-rules/try", json=tried, headers=as_tenant))["denied"] == 0
    assert await answer(http, "DELETE", "/v1/tool-rules/none", headers=as_tenant) == {"deleted": True}
    limits = {
        "reason": "their plan",
        "quotas": [{"kind": "MONEY_PER_DAY", "limit_usd": 2.5}, {"kind": "RUNNING_TASKS"}],
    }
    tenant = await answer(http, "PATCH", f"/v1/tenants/t-{name}", json=limits)
    changed = {one["kind"]: one for one in tenant["quotas"]}
    assert (changed["MONEY_PER_DAY"]["limit_usd"], changed["RUNNING_TASKS"]["limit"]) == (2.5, None)
    limits = {"reason": "a mistake", "quotas": [{"kind": "MONEY_PER_DAY", "limit": 1}]}
    assert (await answer(http, "PATCH", f"/v1/tenants/t-{name}", 400, json=limits))["violations"]
    await answer(http, "POST", "/v1/webhooks/nothing/test", 404)
    await answer(http, "POST", "/v1/webhooks/nothing/rotate", 404, json={})
    await answer(http, "POST", "/v1/webhooks/nothing/discard", 404, json={})
    assert await answer(http, "DELETE", "/v1/webhooks/nothing") == {"deleted": False}
    await answer(http, "GET", "/v1/leases/a/b", 404)


async def test_a_tenant_sees_its_own_tasks_only(http: httpx2.AsyncClient) -> None:
    task_id = await submitted(http, "sim-hello")
    await answer(http, "GET", f"/v1/tasks/{task_id}?tenant=acme", 404)
    await answer(http, "GET", f"/v1/tasks/{task_id}", 404, headers={"Tenure-Tenant": "acme"})
    await answer(http, "GET", f"/v1/tasks/{task_id}/events?tenant=acme", 404)
    await answer(http, "GET", f"/v1/tasks/{task_id}?tenant=acme", 400, headers={"Tenure-Tenant": "other"})


REFUSALS: dict[str, tuple[int, str, str, dict[str, Any]]] = {
    "a field that breaks its constraint": (400, "POST", "/v1/tasks", {"json": {"goal": "x", "max_steps": -1}}),
    "an unknown field": (400, "POST", "/v1/tasks", {"json": {"goal": "x", "max_stepz": 1}}),
    "a field of another type": (400, "POST", "/v1/tasks", {"json": {"goal": 1, "labels": {"a": 1}}}),
    "a number that is too large": (400, "POST", "/v1/tasks", {"json": {"goal": "x", "max_steps": 2**40}}),
    "a larger number": (400, "POST", "/v1/tasks", {"json": {"goal": "x", "max_steps": 10**30}}),
    "a list": (400, "POST", "/v1/tasks", {"json": []}),
    "no JSON": (400, "POST", "/v1/tasks", {"content": b"{", "headers": {"content-type": "application/json"}}),
    "no UTF-8": (400, "POST", "/v1/tasks", {"content": b'"\xff"', "headers": {"content-type": "application/json"}}),
    "no number": (
        400,
        "POST",
        "/v1/tasks",
        {"content": b'{"input": NaN}', "headers": {"content-type": "application/json"}},
    ),
    "half a pair": (
        400,
        "POST",
        "/v1/tasks",
        {"content": b'{"goal": "\\ud800"}', "headers": {"content-type": "application/json"}},
    ),
    "deep JSON": (
        *(400, "POST", "/v1/tasks"),
        {
            "content": b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            "headers": {"content-type": "application/json"},
        },
    ),
    "another type of content": (
        415,
        "POST",
        "/v1/tasks",
        {"content": b"goal=x", "headers": {"content-type": "text/plain"}},
    ),
    "too large a body": (413, "POST", "/v1/tasks", {"content": b" " * (5 * 1024 * 1024)}),
    "an unknown parameter": (400, "GET", "/v1/tasks?stat=QUEUED", {}),
    "a state that does not exist": (400, "GET", "/v1/tasks?state=ASLEEP", {}),
    "a parameter that is not a number": (400, "GET", "/v1/tasks?page_size=many", {}),
    "a parameter that is too large": (400, "GET", "/v1/tasks?page_size=99999999999", {}),
    "no task id": (400, "GET", "/v1/tasks/nothing", {}),
    "no such task": (404, "GET", f"/v1/tasks/{uuid.UUID(int=7)}", {}),
    "events of no task": (404, "GET", f"/v1/tasks/{uuid.UUID(int=7)}/events", {}),
    "events after no number": (400, "GET", f"/v1/tasks/{uuid.UUID(int=7)}/events", {"headers": {"last-event-id": "x"}}),
    "changes after no cursor": (400, "GET", "/v1/changes?after=nothing", {}),
    "no such route": (404, "GET", "/v1/nothing", {}),
    "another method": (405, "PUT", "/v1/tasks", {}),
    "a head of a stream": (405, "HEAD", "/v1/changes", {}),
    "a tenant that is not a name": (400, "GET", "/v1/tasks", {"headers": {"tenure-tenant": b"\xc4"}}),
    "a wait too long": (400, "GET", f"/v1/tasks/{uuid.UUID(int=7)}/wait?timeout_seconds=1e9", {}),
    "no idempotency key": (
        400,
        "POST",
        "/v1/tasks",
        {"json": {"goal": "x"}, "headers": {"idempotency-key": "x" * 500}},
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_refusals_are_problems(http: httpx2.AsyncClient, name: str) -> None:
    status, method, path, options = REFUSALS[name]
    response = await http.request(method, path, **options)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    if method != "HEAD":
        problem = response.json()
        assert (problem["status"], problem["title"] != "") == (status, True)
        assert problem["code"].isupper()
        assert "INTERNAL" not in problem["code"]


async def test_a_violation_names_the_field_of_the_request(http: httpx2.AsyncClient) -> None:
    problem = await answer(http, "POST", "/v1/tasks", 400, json={"goal": "x", "max_tokens": -1, "max_cost": -1})
    assert [one["field"] for one in problem["violations"]] == ["max_cost"]
    problem = await answer(http, "POST", "/v1/tasks", 400, json={"goal": "x", "timeout": -1})
    assert [one["field"] for one in problem["violations"]] == ["timeout"]
    problem = await answer(http, "POST", "/v1/tasks", 400, json={"goal": "x", "tools": ["no_such_tool"]})
    assert problem["violations"][0]["field"].startswith("tools")


async def test_pages_of_other_origins_may_not_change_anything(http: httpx2.AsyncClient) -> None:
    body = {"goal": "by a page", "model": "sim-hello"}
    own = str(http.base_url).rstrip("/")
    for headers, status in (
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": own}, 201),
        ({"Sec-Fetch-Site": "same-origin"}, 201),
        ({"Host": "evil.example"}, 421),
    ):
        problem = await answer(http, "POST", "/v1/tasks", status, json=body, headers=headers)
        assert status == 201 or problem["code"] in {"OTHER_ORIGIN", "OTHER_HOST"}
    await answer(http, "GET", "/v1/tasks", 421, headers={"Host": "evil.example:8480"})
    response = await http.options(
        "/v1/tasks", headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    )
    assert "access-control-allow-origin" not in response.headers


async def test_the_document_of_the_api_and_the_console(http: httpx2.AsyncClient) -> None:
    document = await answer(http, "GET", "/openapi.json")
    assert document["openapi"].startswith("3.1")
    response = await http.get("/")
    assert (response.status_code, response.headers["location"]) == (307, "/console/")
    page = await http.get("/console/")
    assert page.status_code in {200, 404}
    for one in (response, page):
        assert one.headers["x-content-type-options"] == "nosniff"
