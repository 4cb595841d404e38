"""`python -m tests.edges.console.console_pictures FOLDER [PAGE…]`: takes the pictures of docs/console.md.

Needs Chromium and Playwright. Starts a whole installation, and takes each page empty, then with a day's work in it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"  # before gRPC is imported: see tests/conftest.py

from devstack import Stack
from devstack.service_process import ServiceProcess
from tenure.client import Client
from tenure.v1 import task_pb2
from tenure.wire.common import duration
from tests.end_to_end.command import tenure
from tests.end_to_end.conftest import options
from tests.end_to_end.installation import Installation
from tests.end_to_end.test_in_doubt import killed_in_mid_calls, proven_gone
from tests.support.fix_browser import Viewer, viewer_of

if TYPE_CHECKING:
    from playwright.async_api import Page

SIZE: Final[Any] = {"width": 1200, "height": 700}
SCHEMES: Final[tuple[Any, ...]] = ("light", "dark")


class Camera:
    """Takes pictures into a folder, of the pages that are wanted; none: all."""

    def __init__(self, viewer: Viewer, folder: Path, wanted: list[str]) -> None:
        self._viewer, self._folder, self._wanted = viewer, folder, wanted

    async def take(self, name: str, address: str, *, full: bool = False, shows: str = "main h1") -> None:
        """Takes a page, light and dark."""
        if self._wanted and not any(name.startswith(one) for one in self._wanted):
            return
        for scheme in SCHEMES:
            page = await self._viewer.opens(address, color_scheme=scheme)
            await page.set_viewport_size(SIZE)
            await page.locator(shows).first.wait_for()
            await page.wait_for_timeout(1500)
            if shows != "main h1":
                await page.locator(shows).first.evaluate("element => element.scrollIntoView({block: 'center'})")
            await self.picture(page, f"{name}-{scheme}", full=full)
            await page.context.close()
            self._viewer.contexts.remove(page.context)

    async def picture(self, page: Page, name: str, *, full: bool = False) -> None:
        """Takes an open page as it is."""
        await page.screenshot(path=self._folder / f"{name}.png", full_page=full)
        sys.stderr.write(f"{name}\n")


async def work(install: Installation) -> dict[str, str]:
    """A day's work: some tasks have ended, some wait, some run, one was taken over."""
    ids = {}
    for goal in (
        "Summarise the incident of Tuesday",
        "Draft the answer to ticket 4711",
        "Which customers churned in Q3?",
    ):
        ids[goal] = await install.submit("sim-hello", goal, labels={"team": "support"})
    ids["research"] = await install.submit("research", "Compare our competitors' prices", labels={"team": "growth"})
    ids["priced"] = await install.submit("sim-e2e-priced", "Write a summary of the market", labels={"team": "growth"})
    ids["failed"] = await install.submit("sim-e2e-forbidden", "Translate the handbook", labels={"team": "docs"})
    ids["retry"] = await install.submit("sim-e2e-limited", "Review the open pull requests", labels={"team": "docs"})
    steps = [task_pb2.EscalationStep(after=duration(3600), assignee="lead")]
    policy = task_pb2.TaskPolicy(escalations=task_pb2.WaitEscalations(person=steps))
    agent = task_pb2.AgentSpec(approve_tools=["append_record_unsafe"])
    ids["approval"] = await install.submit("sim-pay", "Pay invoice 17 of Northwind", agent=agent, policy=policy)
    ids["question"] = await install.submit("sim-question", "Repaint the landing page")
    ids["event"] = await install.submit("sim-event", "Ship order 1001 when it is packed")
    ids["team"] = await install.submit("sim-team", "Prepare the board meeting")
    for name in ("approval", "question"):
        await install.in_state(ids[name], "WAITING_USER")
    cancelled = await install.submit("sim-question", "Order pizza for everybody")
    await install.in_state(cancelled, "WAITING_USER")
    await install.client.cancel(cancelled, "not today")
    for name in ("research", "priced", "failed"):
        await install.ended(ids[name])
    return ids


async def taken_over(install: Installation) -> tuple[str, ServiceProcess]:
    """A task that runs under its second worker, and its first, which is dead."""
    task_id = await install.submit("sim-e2e-paced", "refunds-of-the-outage", labels={"team": "support"})
    await install.until(task_id, "tool_intent", lambda entry: entry.step == 2)
    owner = install.owner(await install.client.get(task_id))
    owner.kill()
    await install.until(task_id, "transition", lambda e: e.epoch > 0 and e.actor != owner.name and e.sequence > 9)
    return task_id, owner


async def schedules_and_webhooks(install: Installation) -> None:
    address = install.stack.gateway_address
    for name, cron in (("nightly-report", "0 3 * * *"), ("weekly-review", "30 8 * * MON")):
        template = ("--cron", cron, "--model", "sim-hello", "Write the report")
        done = await tenure("schedules", "create", name, *template, address=address)
        if done.code:
            sys.stderr.write(done.err)
    await tenure("schedules", "pause", "weekly-review", "--reason", "holidays", address=address)
    await tenure("schedules", "trigger", "nightly-report", address=address)
    await tenure("webhooks", "create", "desk", "http://127.0.0.1:9/hook", address=address)
    chat = ("team-chat", "http://127.0.0.1:9/chat", "--label", "team=support")
    await tenure("webhooks", "create", *chat, address=address)
    await tenure("webhooks", "pause", "team-chat", "--reason", "moves to another room", address=address)


async def take_all(folder: Path, wanted: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        async with (
            Stack(options(Path(scratch), workers=2, http=True)) as stack,
            Client(stack.gateway_address) as client,
            viewer_of(stack.http_url) as viewer,
        ):
            viewer.misdeeds.allowed = ("Failed to load resource",)
            install, camera = Installation(stack, client), Camera(viewer, folder, wanted)
            for name in ("tasks", "approvals", "in-doubt", "workers", "schedules", "webhooks", "usage"):
                await camera.take(f"{name}-empty", name)
            ids = await work(install)
            await schedules_and_webhooks(install)
            ((in_doubt, _),) = await killed_in_mid_calls(install, 1, Path(scratch) / "held")
            paced, dead = await taken_over(install)
            await camera.take("takeover", f"tasks/{paced}", shows=".mark.takeover")
            await camera.take("waterfall", f"tasks/{paced}?view=waterfall", shows=".spans .span")
            await dead.restart()
            slow = await install.submit("sim-slow", "Think about our roadmap", labels={"team": "growth"})
            await camera.take("streaming", f"tasks/{slow}", shows=".text")
            running = await install.submit("sim-e2e-paced", "refunds-of-monday", labels={"team": "support"})
            await install.until(running, "tool_intent")
            await install.speaking(await install.submit("sim-e2e-slow-answer", "Write the annual report"))
            await camera.take("tasks", "tasks")
            await camera.take("workers", "workers")
            await proven_gone(install, in_doubt)
            for name in ("approvals", "in-doubt", "schedules", "webhooks", "usage", "audit"):
                await camera.take(name, name)
            await camera.take("task", f"tasks/{ids['research']}")
            await camera.take("task-failed", f"tasks/{ids['failed']}")
            await camera.take("task-approval", f"tasks/{ids['approval']}")
            await camera.take("task-doubt", f"tasks/{in_doubt}")
            await camera.take("task-team", f"tasks/{ids['team']}")
            await camera.take("webhook", "webhooks/desk")
            await camera.take("schedule", "schedules/nightly-report")


def main() -> int:
    """Takes the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("pages", nargs="*")
    arguments = parser.parse_args()
    asyncio.run(take_all(arguments.folder, arguments.pages))
    return 0


if __name__ == "__main__":
    sys.exit(main())
