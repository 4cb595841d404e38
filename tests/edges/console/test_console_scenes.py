"""The console in a browser, on a whole installation: what is seen live, what is done, and what never happens."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tenure
from tenure.v1 import task_pb2
from tests.end_to_end.installation import Installation
from tests.end_to_end.test_control import Workers, submit
from tests.end_to_end.test_in_doubt import killed_in_mid_calls, proven_gone
from tests.support.fix_browser import Viewer, viewer_of
from tests.support.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = pytest.mark.nightly

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED
PATIENCE = PATIENCE_SECONDS * 1000.0
NEEDS_LEAVE = task_pb2.AgentSpec(approve_tools=["append_record_unsafe"])
HOSTILE = """<img src=x onerror="document.title='hacked'"><script>window.hacked=1;<b>bold\u202e&amp;"""
SHOWN = HOSTILE.replace("\u202e", "\\u202e")


@pytest.fixture
async def viewer(installation: Installation) -> AsyncIterator[Viewer]:
    """A person at the console of the shared installation."""
    async with viewer_of(installation.stack.http_url) as person:
        yield person


@pytest.fixture
def functions(installation: Installation, tmp_path: Path) -> Iterator[Workers]:
    """Workers with functions, at the shared installation."""
    ours = Workers(installation.stack, tmp_path)
    yield ours
    for worker in ours.started:
        worker.kill()


@pytest.fixture
async def own_viewer(own_installation: Installation) -> AsyncIterator[Viewer]:
    """The same, while parts of the installation are broken. A failed request is a line of Chromium's console."""
    async with viewer_of(own_installation.stack.http_url) as person:
        person.misdeeds.allowed = ("Failed to load resource",)
        yield person


async def sees(page: Page, text: str | re.Pattern[str], within: str = "main") -> None:
    """Waits until the text is shown."""
    await page.locator(within).get_by_text(text).locator("visible=true").first.wait_for(timeout=PATIENCE)


async def row(page: Page, task_id: str, state: str) -> None:
    """Waits until the list shows the task in this state."""
    await page.locator(f'.rows a[href="#/tasks/{task_id}"]').filter(has_text=state).wait_for(timeout=PATIENCE)


async def check_same_visit(page: Page) -> None:
    """Nothing was loaded again."""
    assert await page.evaluate("window.visits") == 1


async def test_the_list_follows_all_tasks(installation: Installation, viewer: Viewer) -> None:
    page = await viewer.opens("tasks")
    await page.locator("#link-state.live").wait_for()
    task_id = await installation.submit("sim-e2e-slow-answer", labels={"team": "blue"})
    await row(page, task_id, "running")
    await installation.client.cancel(task_id)
    await row(page, task_id, "cancelled")
    await check_same_visit(page)
    other = await installation.submit("sim-hello", "no label")
    await row(page, other, "succeeded")
    await page.get_by_label("Label").fill("team=blue")
    await page.keyboard.press("Enter")
    await page.locator(f'.rows a[href="#/tasks/{other}"]').wait_for(state="detached")
    await row(page, task_id, "team=blue")
    assert "label=team" in page.url
    await page.reload()
    await row(page, task_id, "team=blue")
    await page.get_by_role("button", name=re.compile("failed")).click()
    await sees(page, "No task matches.")


async def test_every_act_is_carried_out_on_many_tasks(installation: Installation, viewer: Viewer) -> None:
    """What matches is shown first; the list follows."""
    team = uuid.uuid4().hex[:8]
    made = [await installation.submit("sim-hello", labels={"team": team}, queue="no-worker") for _ in range(3)]
    page = await viewer.opens(f"tasks?label=team%3D{team}")
    for act, verb, reason, state, did in (
        ("Wait", "Let 3 tasks wait", "an outage", "waits for a person", "3 tasks put into a wait"),
        ("Continue", "Continue 3 tasks", "it is over", "queued", "3 tasks continued"),
        ("Cancel", "Cancel 3 tasks", "", "cancelled", "3 tasks cancelled"),
        ("Requeue", "Requeue 3 tasks", "by mistake", "queued", "3 tasks requeued"),
    ):
        for task_id in made:
            await page.locator(f'.rows a[href="#/tasks/{task_id}"]').wait_for(timeout=PATIENCE)
        await page.get_by_role("button", name=f"{act} …").click()
        dialog = page.locator("dialog")
        await dialog.locator(".groups li").filter(has_text="3").wait_for(timeout=PATIENCE)
        if act == "Wait":
            await dialog.get_by_label("Question").fill("Is the provider back?")
        await dialog.get_by_label("Reason").fill(reason)
        await dialog.get_by_role("button", name=verb).click()
        await page.locator(".notice").filter(has_text=did).wait_for(timeout=PATIENCE)
        for task_id in made:
            await row(page, task_id, state)
    await page.get_by_text("More filters").click()
    await page.get_by_label("Reason").fill("operator_requeue")
    await page.keyboard.press("Enter")
    await row(page, made[0], "queued")
    assert "reason=operator_requeue" in page.url
    await check_same_visit(page)


async def test_a_takeover_is_seen_without_a_reload(own_installation: Installation, own_viewer: Viewer) -> None:
    install = own_installation
    task_id = await install.submit("sim-e2e-paced", uuid.uuid4().hex)
    page = await own_viewer.opens(f"tasks/{task_id}")
    await install.until(task_id, "tool_intent", lambda entry: entry.step == 3)
    owner = install.owner(await install.client.get(task_id))
    owner.kill()  # at once: a page that shows things late must not see the task end before
    await sees(page, re.compile(rf"{owner.name} takes the task"))
    await sees(page, re.compile(rf"{owner.name} no longer holds the task: worker lost"))
    takeover = page.locator(".mark.takeover")
    await takeover.wait_for(timeout=PATIENCE)
    assert re.search(
        rf"takes over from {owner.name} at step \d+ epoch \d+\.\d+ → \d+\.\d+", await takeover.inner_text()
    )
    await sees(page, "Step 8")
    await sees(page, "Succeeded", ".timeline")
    await sees(page, "complete")
    assert await page.locator(".timeline .call.ok").count() == 16
    await page.get_by_role("button", name="Waterfall").click()
    await page.locator('.span[data-kind="MOMENT"]').filter(has_text=f"takeover {owner.name}").wait_for(timeout=PATIENCE)
    assert await page.locator('.spans .span[data-kind="TOOL"] .bar').count() == 16
    await check_same_visit(page)


async def test_a_page_resumes_after_the_gateway_was_killed(own_installation: Installation, own_viewer: Viewer) -> None:
    """No step is missing, and none is there twice."""
    install = own_installation
    task_id = await install.submit("sim-e2e-paced", uuid.uuid4().hex)
    page = await own_viewer.opens(f"tasks/{task_id}")
    await sees(page, "Step 2")
    gateway = install.stack.services["gateway"]
    gateway.kill()
    await install.died(gateway)
    await page.locator(".link-state.waiting").first.wait_for(timeout=PATIENCE)
    await gateway.restart()
    await sees(page, "complete")
    steps = await page.locator(".timeline .step h3 span:first-child").all_inner_texts()
    assert steps == [f"Step {number}" for number in range(1, 10)]
    assert await page.locator(".timeline .call.ok").count() == 16
    await check_same_visit(page)


async def test_a_function_shows_its_steps_and_its_result(
    installation: Installation, functions: Workers, viewer: Viewer
) -> None:
    """Its steps have no answer of a model, and what it returns is in no other entry."""
    await functions.start()
    given = {"month": "2026-10", "books": uuid.uuid4().hex}
    task_id = await submit(installation, functions, "month_end", json.dumps(given))
    await installation.ended(task_id)
    page = await viewer.opens(f"tasks/{task_id}")
    await sees(page, "complete")
    assert await page.locator(".timeline .call.ok").count() == 1
    assert "not finished" not in await page.locator(".timeline").inner_text()
    assert '{\n  "booked": true,\n  "total": 250\n}' in await page.locator(".result").inner_text()
    header = await page.locator(".task-header .strip").inner_text()
    assert "Took" in header
    assert "1 of" not in header.partition("Attempt")[2]


async def test_a_call_leads_to_all_that_touched_its_effect(
    installation: Installation, functions: Workers, viewer: Viewer
) -> None:
    await functions.start()
    order = f"{uuid.uuid4().hex}, a=b"
    both = []
    for _ in range(2):
        both.append(await submit(installation, functions, "refunding", json.dumps({"order": order})))
        assert (await installation.ended(both[-1])).state == SUCCEEDED
    page = await viewer.opens(f"tasks/{both[1]}")
    await page.locator(".timeline .call summary").click()
    await page.get_by_role("link", name="All calls with this effect key").click()
    rows = page.locator("tbody tr")
    for task_id, said in zip(both, ("succeeded happened", "already happened none"), strict=True):
        found = rows.filter(has=page.locator(f'a[href="#/tasks/{task_id}"]'))
        await found.filter(has_text=order).wait_for(timeout=PATIENCE)
        assert said in " ".join((await found.inner_text()).split())
    async with page.expect_download() as downloading:
        await rows.first.get_by_role("link", name="Receipt").click()
    receipt = json.loads((await (await downloading.value).path()).read_text().splitlines()[0])["receipt"]
    assert receipt["tool_service"]["record"]["task"] == both[0]
    key = page.get_by_label("Argument of the key").first
    assert await key.input_value() == f"/order={order}"
    await key.fill("order=8")
    await page.keyboard.press("Enter")
    await sees(page, "No call has such an effect key.")
    await key.fill("order")
    await page.keyboard.press("Enter")
    await sees(page, "order: write an argument and its value")
    await key.fill(f"order={order}")
    await page.keyboard.press("Enter")
    await page.locator(f'a[href="#/tasks/{both[0]}"]').wait_for(timeout=PATIENCE)
    assert "tool=refund" in page.url


async def test_the_list_has_the_tasks_of_an_agent_or_of_one_revision(
    installation: Installation, viewer: Viewer
) -> None:
    name = f"agent-{uuid.uuid4().hex[:8]}"
    async with tenure.Client(installation.stack.gateway_address) as client:
        await client.register_agent(name, model="sim-hello", system="Be brief.", tools=[])
        task = await client.submit("Wait here.", agent=name, queue="no-worker")
    page = await viewer.opens(f"tasks?agent={name}")
    await row(page, task.id, "queued")
    await page.get_by_label("Agent").fill(f"{name}@999")
    await page.keyboard.press("Enter")
    await sees(page, "No task matches.")
    await page.get_by_label("Agent").fill(f"{name}@1")
    await page.keyboard.press("Enter")
    await row(page, task.id, "queued")
    await page.get_by_label("Search").fill("no such text")
    await page.get_by_role("button", name="Cancel …").click()
    await sees(page, "No task that matches can be cancelled.", ".notice")


async def test_the_models_text_is_seen_as_it_comes(installation: Installation, viewer: Viewer) -> None:
    task_id = await installation.submit("sim-e2e-slow-answer")
    page = await viewer.opens(f"tasks/{task_id}")
    await page.locator(".text.streaming").filter(has_text="word word").wait_for(timeout=PATIENCE)
    await page.get_by_role("button", name="Cancel …").click()
    await page.get_by_label("Reason").fill("enough")
    await page.get_by_role("button", name="Cancel the task").click()
    await sees(page, "Cancelled: cancel requested")
    await sees(page, re.compile("cancels the task: enough"))
    over = page.locator('button[title="The task has ended."]').filter(has_text="Cancel …")
    await over.click(force=True)  # it is disabled, and says why
    await page.locator(".notice").filter(has_text="The task has ended.").wait_for()


async def test_an_approval_lets_the_task_go_on(installation: Installation, viewer: Viewer) -> None:
    file = uuid.uuid4().hex
    first, second = await viewer.opens("approvals"), await viewer.opens("approvals")
    task_id = await installation.submit("sim-e2e-one-leave", file, agent=NEEDS_LEAVE)
    cards = [page.locator("article").filter(has_text=task_id[:13]) for page in (first, second)]
    for card in cards:
        await card.locator("b.tool").wait_for(timeout=PATIENCE)
        assert f'"file": "{file}"' in await card.inner_text()
    await cards[0].get_by_label("Comment").fill("I looked")
    await cards[0].get_by_role("button", name="Approve").click()
    await cards[1].wait_for(state="detached", timeout=PATIENCE)
    assert (await installation.ended(task_id)).state == SUCCEEDED
    assert installation.effects(file) == ["only"]
    page = await viewer.opens(f"tasks/{task_id}")
    await sees(page, re.compile("allows the call"))
    await sees(page, "I looked")


async def test_a_call_runs_with_the_arguments_of_the_person(installation: Installation, viewer: Viewer) -> None:
    file = uuid.uuid4().hex
    task_id = await installation.submit("sim-e2e-one-leave", file, agent=NEEDS_LEAVE)
    page = await viewer.opens(f"tasks/{task_id}")
    await page.get_by_role("button", name="Edit the arguments").click()
    text = page.get_by_label("Arguments, a JSON object")
    await text.fill("no JSON")
    await page.get_by_role("button", name="Allow with these").click()
    await sees(page, re.compile("That is not valid JSON"), "dialog")
    await text.fill(f'{{"file": "{file}", "line": "edited"}}')
    await page.get_by_role("button", name="Allow with these").click()
    assert (await installation.ended(task_id)).state == SUCCEEDED
    assert installation.effects(file) == ["edited"]


async def test_a_call_in_doubt_is_resolved(own_installation: Installation, own_viewer: Viewer, tmp_path: Path) -> None:
    install = own_installation
    ((task_id, file),) = await killed_in_mid_calls(install, 1, tmp_path / "held")
    await proven_gone(install, task_id)
    page = await own_viewer.opens("in-doubt")
    card = page.locator("article").filter(has_text=task_id[:13])
    await card.get_by_text("proven gone: what you find outside is final").wait_for(timeout=PATIENCE)
    await card.get_by_role("button", name="Resolve").click()
    await page.get_by_label("It happened").check()
    await sees(page, "The agent reads a success, with the result that you write.", "dialog")
    await page.get_by_label("It did not happen").check()
    await sees(page, "Tenure runs the call again.", "dialog")
    await page.get_by_label("How you found out").fill("the file has no line")
    await page.get_by_role("button", name="Resolve", exact=True).click()
    await card.wait_for(state="detached", timeout=PATIENCE)
    assert (await install.ended(task_id)).state == SUCCEEDED
    assert install.effects(file) == ["at most once"]
    await page.goto(f"{own_viewer.url}/console/#/tasks/{task_id}")
    await sees(page, re.compile("says that call 1.0 did not happen: it runs again"))


async def test_hostile_text_stays_text(installation: Installation, viewer: Viewer) -> None:
    task_id = await installation.submit("sim-e2e-echoing", HOSTILE, agent=NEEDS_LEAVE, labels={"team": HOSTILE[:60]})
    await installation.in_state(task_id, "WAITING_USER")
    for name in ("tasks", "approvals", f"tasks/{task_id}"):
        page = await viewer.opens(name)
        await sees(page, SHOWN)
        if name.startswith("tasks/"):
            await page.locator(".files li").first.wait_for()
            for call in await page.locator(".call summary").all():
                await call.click()
            await page.locator(".files button").first.click()
            await sees(page, SHOWN, "dialog")
        assert await page.locator("main :is(img, script, b:has-text('bold'))").count() == 0
        assert await page.evaluate("[window.hacked, document.title === 'hacked']") == [None, False]
        assert "\u202e" not in await page.locator("body").inner_text()


async def test_everything_is_done_with_the_keyboard(installation: Installation, viewer: Viewer) -> None:
    task_ids = [await installation.submit("sim-hello", f"keys {number}") for number in range(3)]
    for task_id in task_ids:
        await installation.ended(task_id)
    page = await viewer.opens("tasks")
    await row(page, task_ids[0], "succeeded")
    await page.keyboard.press("/")
    await page.keyboard.type("keys ")
    await page.locator(".rows a").nth(2).wait_for()
    await page.keyboard.press("Escape")
    for key in "jjk":
        await page.keyboard.press(key)
    focused = await page.evaluate("document.activeElement.getAttribute('href')")
    assert focused == await page.locator(".rows a").nth(0).get_attribute("href")
    outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    await page.keyboard.press("Enter")
    await sees(page, "Timeline")
    await page.keyboard.press("?")
    await page.locator("dialog[open]").get_by_text("next and previous row").wait_for()
    await page.keyboard.press("Escape")
    await page.locator("dialog").wait_for(state="detached")
    await page.clock.set_fixed_time(datetime.now(UTC))  # the second key has to come soon, which a busy machine may miss
    await page.keyboard.press("g")
    await page.keyboard.press("w")
    await page.get_by_role("heading", name="Workers", level=1).wait_for()
    await sees(page, "worker-1")


async def test_a_plan_shows_what_is_left_and_is_ended(installation: Installation, viewer: Viewer) -> None:
    async with tenure.Client(installation.stack.gateway_address) as client:
        task = await client.submit(uuid.uuid4().hex, model="sim-e2e-leave", approve_tools=["append_record_unsafe"])
        page = await viewer.opens(f"tasks/{task.id}")
        await installation.in_state(task.id, "WAITING_USER")
        wait = (await task.refresh()).wait
        assert wait is not None
        await task.approve(wait, plan=tenure.CallPlan(count=5))
        await task.result()
    await sees(page, "The plan has counted 2 of 5 calls, 3 left", ".timeline")
    await page.get_by_role("button", name="End the plan …").click()
    await page.get_by_label("Reason").fill("enough of them")
    await page.get_by_role("button", name="End the plan", exact=True).click()
    await sees(page, re.compile("The plan has counted 2 of 5 calls · ended by .*: enough of them"), ".timeline")
    assert await page.get_by_role("button", name="End the plan …").count() == 0


async def test_a_message_and_a_fork_are_sent(installation: Installation, viewer: Viewer) -> None:
    task_id = await installation.submit("sim-question")
    await installation.in_state(task_id, "WAITING_USER")
    page = await viewer.opens(f"tasks/{task_id}")
    await page.get_by_label("Your answer").fill("blue")
    await page.get_by_role("button", name="Send the answer").click()
    ended = await installation.ended(task_id)
    assert "blue" in ended.result
    await sees(page, "Succeeded", ".timeline")
    await page.get_by_role("button", name="Fork …").click()
    await page.get_by_label("Next message").fill("And in German?")
    await page.get_by_role("button", name="Fork", exact=True).click()
    await page.wait_for_url(lambda url: task_id not in url)
    await sees(page, re.compile("Forked from"))
    await sees(page, "And in German?")


PAGES = ("tasks", "approvals", "in-doubt", "effects", "aging", "workers", "schedules", "webhooks", "usage", "audit")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_page_shuts_anybody_out(
    installation: Installation, viewer: Viewer, axe_core: str, scheme: Any
) -> None:
    """axe-core finds no serious violation of WCAG 2.2 A and AA."""
    waiting = await installation.submit("sim-e2e-one-leave", uuid.uuid4().hex, agent=NEEDS_LEAVE)
    await installation.in_state(waiting, "WAITING_USER")
    found = {}
    for name in (*PAGES, f"tasks/{waiting}"):
        # Without the animation of a sign, whose contrast depends on the moment.
        page = await viewer.opens(name, color_scheme=scheme, reduced_motion="reduce")
        await page.locator("#link-state.live").wait_for()
        await page.wait_for_timeout(700)
        await page.evaluate(axe_core)
        results = await page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa']})")
        found[name] = [
            (one["id"], node["target"], node["failureSummary"])
            for one in results["violations"]
            if one["impact"] in {"serious", "critical"}
            for node in one["nodes"]
        ]
    assert {name: violations for name, violations in found.items() if violations} == {}
