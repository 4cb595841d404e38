"""The console's pages of schedules, webhooks and usage follow the API and act on it; approvals hide no character."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from tenure.runtime.http.outbound_http import http_tls_context
from tests.edges.console.test_console_scenes import NEEDS_LEAVE, PATIENCE, check_same_visit, row, sees
from tests.end_to_end.installation import Installation
from tests.end_to_end.test_control import Workers
from tests.support.fix_browser import Viewer, viewer_of
from tests.support.http_stub import HttpStub, Seen, page
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

if TYPE_CHECKING:
    from playwright.async_api import Page, Route

pytestmark = [pytest.mark.server, pytest.mark.nightly]


@pytest.fixture
async def viewer(installation: Installation) -> AsyncIterator[Viewer]:
    """A person at the console of the shared installation."""
    async with viewer_of(installation.stack.http_url) as person:
        yield person


@pytest.fixture
async def http(installation: Installation) -> AsyncIterator[httpx2.AsyncClient]:
    base = installation.stack.http_url
    async with httpx2.AsyncClient(
        verify=http_tls_context(), base_url=base, timeout=CALL_SECONDS, trust_env=False
    ) as client:
        yield client


async def read(http: httpx2.AsyncClient, path: str) -> Any:
    response = await http.get(path)
    assert response.status_code == 200, response.text
    return response.json()


async def until(http: httpx2.AsyncClient, path: str, holds: Callable[[Any], bool]) -> Any:
    """What the API says, when it holds."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds(value := await read(http, path)):
            await asyncio.sleep(0.1)
    return value


async def fill_in(at: Page, values: dict[str, str], confirm: str) -> None:
    """Fills the open form in, and sends it."""
    dialog = at.locator("dialog[open]")
    for label, value in values.items():
        await dialog.get_by_label(label, exact=True).fill(value)
    await dialog.get_by_role("button", name=confirm, exact=True).click()


async def test_a_task_is_started_run_again_forked_and_requeued(
    installation: Installation, viewer: Viewer, http: httpx2.AsyncClient
) -> None:
    """Each has the values of the form, and what the form does not show."""
    at = await viewer.opens("tasks")

    async def made(button: str, values: dict[str, str], confirm: str) -> Any:
        before = at.url
        await at.get_by_role("button", name=button).click()
        await fill_in(at, values, confirm)
        await at.wait_for_url(lambda url: "#/tasks/" in url and url != before, timeout=PATIENCE)
        return await read(http, f"/v1/tasks/{at.url.rpartition('/')[2]}")

    values = {
        "Goal": "Hold",
        "Model": "sim-hello",
        "Queue": "no-worker",
        "Labels": "team=a, by=form",
        "Most tokens": "9000",
    }
    first = await made("Start a task …", values, "Start")
    assert (first["labels"], first["limits"]["max_tokens"]) == ({"team": "a", "by": "form"}, 9000)
    again = await made("Run again …", {"Goal": "Hold on", "Model": "sim-echo"}, "Start")
    changed = {"task_id", "root_task_id", "goal", "model", "created_at", "updated_at", "deadline_at"}
    assert {name for name in first if first[name] != again[name]} <= changed
    assert (again["goal"], again["model"]) == ("Hold on", "sim-echo")

    ended = await installation.submit("sim-hello")
    await installation.ended(ended)
    await at.goto(f"{viewer.url}/console/#/tasks/{ended}")
    await at.get_by_role("button", name="Waterfall").wait_for()
    fork = await made("Fork …", {"After step": "0", "Model": "sim-echo", "System prompt": "Be brief."}, "Fork")
    assert (fork["forked_from_task_id"], fork["model"], fork["system"]) == (ended, "sim-echo", "Be brief.")

    await installation.client.cancel(again["task_id"])
    await at.goto(f"{viewer.url}/console/#/tasks/{again['task_id']}")
    await at.get_by_role("button", name="Requeue …").click()
    await fill_in(at, {"Also more tokens": "500", "Reason": "by mistake"}, "Requeue")
    await until(http, f"/v1/tasks/{again['task_id']}", lambda task: (task["attempt"], task["state"]) == (2, "QUEUED"))
    assert (await read(http, f"/v1/tasks/{again['task_id']}"))["budget"]["max_tokens"] == 9500


async def test_an_agent_in_python_takes_messages(
    installation: Installation, viewer: Viewer, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    """Its fork may have a message, too; another run is for the same agent."""
    name = "support"
    code = await Workers(installation.stack, tmp_path).start(
        {"TENURE_WORKER_CONTROL_MODULES": "tests.support.python_agents"}
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await http.get(f"/v1/agents/{name}")).status_code != 200:
            await asyncio.sleep(0.1)
    code.kill()  # it has registered its agents
    body = {
        "goal": "Refund order 7",
        "agent": name,
        "queue": "no-worker",
        "input": {"order": 7},
        "approve_tools": ["refund"],
    }
    submitted = await http.post("/v1/tasks", json=body)
    assert submitted.status_code == 201, submitted.text
    first = submitted.json()
    at = await viewer.opens(f"tasks/{first['task_id']}")
    await at.get_by_role("button", name="Message …").click()
    await fill_in(at, {"Text": "Only half of it"}, "Send")
    await sees(at, "Only half of it", ".timeline")

    async def made(button: str, values: dict[str, str], confirm: str) -> Any:
        await at.goto(f"{viewer.url}/console/#/tasks/{first['task_id']}")
        await at.get_by_role("button", name=button).click()
        await fill_in(at, values, confirm)
        await at.wait_for_url(lambda url: "#/tasks/" in url and first["task_id"] not in url, timeout=PATIENCE)
        return await read(http, f"/v1/tasks/{at.url.rpartition('/')[2]}")

    fork = await made("Fork …", {"Next message": "And order 8"}, "Fork")
    assert fork["forked_from_task_id"] == first["task_id"]
    await sees(at, "And order 8", ".timeline")
    again = await made("Run again …", {"Goal": "Refund order 9"}, "Start")
    same = ("agent", "agent_revision", "function", "approve_tools", "queue")
    assert {name: again[name] for name in same} == {name: first[name] for name in same}
    assert again["goal"] == "Refund order 9"


class Tampered:
    """Answers of the gateway to one route, some of which are others."""

    def __init__(self, answer: Callable[[int, dict[str, list[str]]], dict[str, Any] | None]) -> None:
        self.answer, self.queries = answer, list[dict[str, list[str]]]()

    async def __call__(self, route: Route) -> None:
        query = parse_qs(urlsplit(route.request.url).query)
        self.queries.append(query)
        body = self.answer(len(self.queries), query)
        await (route.continue_() if body is None else route.fulfill(json=body))


async def test_a_search_goes_on_after_an_early_stop(
    installation: Installation, viewer: Viewer, http: httpx2.AsyncClient
) -> None:
    """The gateway reads some tasks for a page. The console asks for older ones, and says up to when it searched."""
    label = uuid.uuid4().hex[:8]
    task = await read(http, f"/v1/tasks/{await installation.submit('sim-hello', queue='no-worker')}")
    stopped = {"tasks": [], "next_page_token": "older", "searched_until": "2026-11-29T07:00:00Z"}

    def answer(_number: int, query: dict[str, list[str]]) -> dict[str, Any] | None:
        if "page_token" not in query:
            return stopped
        older.append(query)
        return {"tasks": [task], "next_page_token": ""} if len(older) == 12 else stopped

    older: list[dict[str, list[str]]] = []
    at = await viewer.opens("workers")
    await at.route(re.compile(r"/v1/tasks\?"), Tampered(answer))
    await at.goto(f"{viewer.url}/console/#/tasks?model=rare&label=of%3D{label}")
    await sees(at, re.compile(r"Nothing among the tasks since 2026-11-29 .*\.$"))
    assert await at.get_by_text("No task matches.").count() == 0
    assert len(older) == 10
    await at.get_by_role("button", name="Show older tasks").click()
    await at.locator(f'.rows a[href="#/tasks/{task["task_id"]}"]').wait_for(timeout=PATIENCE)


async def test_a_filtered_list_follows_one_task_at_a_time(installation: Installation, viewer: Viewer) -> None:
    """What matches no more leaves, and what was read before stays: the list is read once."""
    label = uuid.uuid4().hex[:8]
    tasks = [await installation.submit("sim-hello", queue="no-worker", labels={"of": label}) for _ in range(2)]
    at = await viewer.opens(f"tasks?label=of%3D{label}&state=QUEUED")
    reads: list[str] = []
    for task_id in tasks:
        await row(at, task_id, "queued")
    await at.locator("#link-state.live").wait_for(timeout=PATIENCE)
    at.on("request", lambda request: reads.append(request.url) if "/v1/tasks?" in request.url else None)
    await installation.client.cancel(tasks[0])
    await at.locator(f'.rows a[href="#/tasks/{tasks[0]}"]').wait_for(state="detached", timeout=PATIENCE)
    third = await installation.submit("sim-hello", queue="no-worker", labels={"of": label})
    await row(at, third, "queued")
    await row(at, tasks[1], "queued")
    assert reads
    assert all("task_id=" in url for url in reads)


async def test_a_tree_is_summed_over_all_its_pages(
    installation: Installation, viewer: Viewer, http: httpx2.AsyncClient
) -> None:
    task = await read(http, f"/v1/tasks/{await installation.submit('sim-hello', queue='no-worker')}")
    child = {"parent_task_id": task["task_id"], "goal": "a part", "cost_usd": 2}
    children = [{**task, **child, "task_id": str(uuid.uuid4())} for _ in range(3)]

    def answer(_number: int, query: dict[str, list[str]]) -> dict[str, Any]:
        last = "page_token" in query
        return {"tasks": [{**task, "cost_usd": 1}] if last else children, "next_page_token": "" if last else "root"}

    at = await viewer.opens("workers")
    await at.route(re.compile("/tree"), Tampered(answer))
    await at.goto(f"{viewer.url}/console/#/tasks/{task['task_id']}")
    await sees(at, "4 tasks, $7.00 together")


async def pause(at: Page, reason: str) -> None:
    """Fills the form in."""
    await at.get_by_role("button", name="Pause …").click()
    await at.get_by_role("button", name="Pause", exact=True).click()
    assert await at.locator("dialog[open]").count() == 1  # a reason is required
    await at.get_by_label("Reason").fill(reason)
    await at.get_by_role("button", name="Pause", exact=True).click()
    await at.locator("main").get_by_text("‖ paused").wait_for(timeout=PATIENCE)


async def test_a_schedule_is_followed_and_steered(
    installation: Installation, viewer: Viewer, http: httpx2.AsyncClient
) -> None:
    name = f"s-{uuid.uuid4().hex[:12]}"
    listed = await viewer.opens("schedules")
    await listed.locator("#link-state.live").wait_for()
    await listed.get_by_role("button", name="Create a schedule …").click()
    given = {"Name": name, "Due": "0 3 1 1 *", "Goal": f"goal of {name}", "Model": "sim-hello", "Labels": "by=form"}
    await fill_in(listed, given, "Create")
    await listed.wait_for_url(re.compile("#/schedules/"), timeout=PATIENCE)
    route = f"/v1/schedules/{listed.url.rpartition('/')[2]}"
    created = (await read(http, route))["schedule"]
    assert created["task"]["labels"] == {"by": "form"}
    await listed.get_by_role("link", name="Schedules").first.click()
    first = (await http.post(f"{route}/trigger", json={})).json()["task_id"]
    row = listed.locator("tr").filter(has_text=name)
    await row.get_by_text("active").wait_for(timeout=PATIENCE)
    await row.get_by_text(f"goal of {name}").wait_for()
    await check_same_visit(listed)

    at = await viewer.opens(f"schedules/{created['schedule_id']}")
    await at.locator(f'a[href="#/tasks/{first}"]').wait_for(timeout=PATIENCE)
    await pause(at, "holidays")
    paused = await until(http, route, lambda value: value["schedule"]["paused"])
    assert paused["schedule"]["pause_reason"] == "holidays"
    await row.get_by_text("paused").wait_for(timeout=PATIENCE)
    await at.get_by_role("button", name="Resume").click()
    await sees(at, "● active")
    await until(http, route, lambda value: not value["schedule"]["paused"])

    await at.get_by_role("button", name="Run now …").click()
    await at.get_by_role("button", name="Run now", exact=True).click()
    await at.wait_for_url(re.compile("#/tasks/"), timeout=PATIENCE)
    second = at.url.rpartition("/")[2]
    assert second != first
    assert (await installation.ended(second)).spec.goal == f"goal of {name}"
    back = await viewer.opens(f"schedules/{created['schedule_id']}")
    for task_id in (first, second):
        await back.locator("tr").filter(has=back.locator(f'a[href="#/tasks/{task_id}"]')).wait_for(timeout=PATIENCE)


async def test_a_webhook_is_followed_and_steered(
    installation: Installation, viewer: Viewer, http: httpx2.AsyncClient
) -> None:
    name, label = f"w-{uuid.uuid4().hex[:12]}", uuid.uuid4().hex[:12]
    took: list[bytes] = []

    def answer(seen: Seen) -> bytes:
        took.append(seen.body)
        return page("thanks")

    async def runs() -> str:
        task_id = await installation.submit("sim-hello", labels={"hook": label})
        await installation.ended(task_id)
        return task_id

    async with HttpStub(answer) as stub:
        listed = await viewer.opens("webhooks")
        await listed.get_by_role("button", name="Create a webhook …").click()
        await fill_in(listed, {"Name": name, "URL": stub.url("/hook"), "Only the labels": f"hook={label}"}, "Create")
        await listed.locator("dialog pre").filter(has_text="whsec_").wait_for(timeout=PATIENCE)
        await listed.keyboard.press("Escape")
        first = await runs()
        row = listed.locator("tr").filter(has_text=name)
        await row.get_by_text("active").wait_for(timeout=PATIENCE)
        await row.get_by_text(stub.url("/hook")).wait_for()
        await check_same_visit(listed)

        at = await viewer.opens(f"webhooks/{name}")
        delivered = at.locator("tr").filter(has=at.locator(f'a[href="#/tasks/{first}"]')).filter(has_text="delivered")
        await delivered.first.wait_for(timeout=PATIENCE)
        assert took
        await sees(at, f"hook={label}")
        await sees(at, "ends, waits and warnings")

        await pause(at, "moves to another room")
        held = (await read(http, f"/v1/webhooks/{name}"))["pause_reason"]
        assert held == "moves to another room"
        sent = len(took)
        second = await runs()
        listing = await read(http, f"/v1/webhooks/{name}/deliveries?page_size=100")
        assert second not in {one["task_id"] for one in listing["deliveries"]}
        assert len(took) == sent
        await at.get_by_role("button", name="Resume").click()
        later = at.locator("tr").filter(has=at.locator(f'a[href="#/tasks/{second}"]')).filter(has_text="delivered")
        await later.first.wait_for(timeout=PATIENCE)
        assert len(took) > sent
        await check_same_visit(at)
        await at.close()  # it would ask for the deleted webhook
    assert (await http.delete(f"/v1/webhooks/{name}")).json() == {"deleted": True}


COUNT_LISTENERS = """() => {
  globalThis.listenersAdded = globalThis.listenersRemoved = 0;
  const prototype = MediaQueryList.prototype;
  const { addEventListener, removeEventListener } = prototype;
  prototype.addEventListener = function (...all) {
    listenersAdded += 1;
    return addEventListener.apply(this, all);
  };
  prototype.removeEventListener = function (...all) {
    listenersRemoved += 1;
    return removeEventListener.apply(this, all);
  };
}"""
"""A plot that is replaced must not keep its listener: the browser would keep its canvas, too, every few seconds."""


async def test_usage_grows_as_it_is_used(installation: Installation, viewer: Viewer, http: httpx2.AsyncClient) -> None:
    """The figures are those of the API, and a new span is shown at once."""
    model = "sim-e2e-priced"
    await installation.ended(await installation.submit(model, uuid.uuid4().hex))
    at = await viewer.opens("usage")
    row = at.locator("tr").filter(has=at.get_by_text(model, exact=True))
    await row.wait_for(timeout=PATIENCE)

    async def calls() -> int:
        sums = (await read(http, "/v1/tenants/default/usage?by=MODEL&page_size=500"))["sums"]
        return int(next(one["calls"] for one in sums if one["key"] == model))

    before = await calls()
    await at.evaluate(COUNT_LISTENERS)
    await installation.ended(await installation.submit(model, uuid.uuid4().hex))
    after = await calls()
    assert after > before
    await row.locator("td").nth(1).filter(has_text=re.compile(rf"^{after}$")).wait_for(timeout=PATIENCE)
    assert await at.evaluate("() => [listenersAdded > 0, listenersAdded - listenersRemoved]") == [True, 0]
    await check_same_visit(at)
    await at.get_by_label("Span").select_option("7")
    await at.wait_for_url(re.compile("days=7"), timeout=PATIENCE)
    await at.locator(".plots canvas").first.wait_for(timeout=PATIENCE)


HIDDEN = "pay\u200bpal\u2060\u200d\u00ad\u202ecom\u3164\ufeff"
SEEN = "pay\\u200bpal\\u2060\\u200d\\u00ad\\u202ecom\\u3164\\ufeff"


async def test_an_approval_hides_no_character(installation: Installation, viewer: Viewer) -> None:
    """An argument that looks like another one must not be approved for it."""
    goal = uuid.uuid4().hex + HIDDEN
    task_id = await installation.submit("sim-e2e-one-leave", goal, agent=NEEDS_LEAVE)
    await installation.in_state(task_id, "WAITING_USER")
    for address in ("approvals", f"tasks/{task_id}"):
        at = await viewer.opens(address)
        panel = at.locator("section.wait").filter(has_text=goal[:32])
        await panel.locator("pre.arguments").wait_for(timeout=PATIENCE)
        shown = await panel.locator("pre.arguments").inner_text()
        assert f'"file": "{goal[:32]}{SEEN}"' in shown
        assert not set(shown) & (set(HIDDEN) - set("paypalcom"))
        await panel.locator("p.unseen").get_by_text("characters that cannot be seen").wait_for()
    await at.get_by_role("button", name="Edit the arguments").click()
    text = at.get_by_label("Arguments, a JSON object")
    assert f'"file": "{goal[:32]}{SEEN}"' in await text.input_value()
    await at.keyboard.press("Escape")
    plain = await installation.submit("sim-e2e-one-leave", uuid.uuid4().hex, agent=NEEDS_LEAVE)
    other = await viewer.opens(f"tasks/{plain}")
    await other.locator("section.wait pre.arguments").wait_for(timeout=PATIENCE)
    assert await other.locator("p.unseen").count() == 0
    for ended in (task_id, plain):
        await installation.client.cancel(ended, "seen")


async def test_aging_shows_the_oldest_queued_task(installation: Installation, viewer: Viewer) -> None:
    queue = f"no-worker-{uuid.uuid4().hex[:8]}"
    task_id = await installation.submit("sim-hello", queue=queue)
    at = await viewer.opens("aging")
    queues = at.locator("section", has=at.get_by_role("heading", name="Oldest queued task by queue and priority"))
    await queues.get_by_text(queue).wait_for(timeout=PATIENCE)
    oldest = at.locator("section", has=at.get_by_role("heading", name="Oldest tasks", exact=True))
    await oldest.locator(f'a[title="{task_id}"]').wait_for(timeout=PATIENCE)
    await installation.client.cancel(task_id)
