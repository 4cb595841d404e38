"""The console of a gateway that demands API keys: who may see and do what, and what is written down."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from devstack import Stack
from tenure.client import Client
from tenure.domain.access import Permission
from tenure.runtime.security.tls import ClientTls
from tenure.v1 import api_key_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.wire.access import PERMISSIONS
from tests.end_to_end.conftest import options
from tests.end_to_end.installation import Installation
from tests.support.fix_browser import Viewer, viewer_of
from tests.support.noisy_tenants import operator_key
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.nightly]
PATIENCE: Final = PATIENCE_SECONDS * 1000.0
NEEDS_LEAVE: Final = task_pb2.AgentSpec(approve_tools=["append_record_unsafe"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    settings = {"gateway": {"TENURE_GATEWAY_AUTHENTICATION": "api-keys"}}
    folder = tmp_path_factory.mktemp("console-keys")
    async with Stack(options(folder, tls=True, http=True, environment=settings)) as started:
        yield started


def client_of(stack: Stack, key: str, tenant: str | None = None) -> Client:
    return Client(
        stack.gateway_address, api_key=key, tenant=tenant, tls=ClientTls(stack.layout.certificates / "ca.pem")
    )


@pytest.fixture
async def operator(stack: Stack) -> AsyncIterator[Installation]:
    key = await operator_key(stack)
    async with client_of(stack, key) as client:
        yield Installation(stack, client)


@pytest.fixture
async def viewer(stack: Stack) -> AsyncIterator[Viewer]:
    async with viewer_of(stack.http_url) as person:
        person.misdeeds.allowed = ("Failed to load resource",)  # a refused request is a line of Chromium's console
        person.options["ignore_https_errors"] = True  # the authority is the stack's own
        yield person


async def new_key(install: Installation, *permissions: Permission) -> str:
    request = pb.CreateApiKeyRequest(name="viewer", permissions=[PERMISSIONS.to_wire(one) for one in permissions])
    return (await install.client.api_keys.CreateApiKey(request)).secret


async def test_a_reader_sees_all_and_changes_nothing(operator: Installation, viewer: Viewer) -> None:
    file = uuid.uuid4().hex
    task_id = await operator.submit("sim-e2e-one-leave", file, agent=NEEDS_LEAVE)
    await operator.in_state(task_id, "WAITING_USER")
    key = await new_key(operator, Permission.READ)
    page = await viewer.opens(f"tasks/{task_id}")
    field = page.get_by_label("API key")
    await field.fill("tnr_wrong")
    await page.keyboard.press("Enter")
    await page.get_by_role("alert").filter(has_text=re.compile("key")).wait_for(timeout=PATIENCE)
    await field.fill(key)
    await page.keyboard.press("Enter")
    approve = page.get_by_role("button", name=re.compile("^Approve"))
    await approve.wait_for(timeout=PATIENCE)
    assert await approve.get_attribute("aria-disabled") == "true"
    assert "it needs the permission APPROVE" in (await approve.get_attribute("title") or "")
    await approve.click(force=True)
    await page.locator(".notice").filter(has_text="it needs the permission APPROVE").wait_for()
    cookies = await page.context.cookies()
    assert [(one["httpOnly"], one["secure"], one["sameSite"]) for one in cookies] == [(True, True, "Strict")]
    assert key not in await page.evaluate(
        "document.cookie + JSON.stringify(sessionStorage) + JSON.stringify(localStorage)"
    )
    status = await page.evaluate(
        """async (id) => (await fetch(`/v1/tasks/${id}/cancel`, {method: "POST", body: "{}",
             headers: {"Content-Type": "application/json"}})).status""",
        task_id,
    )
    assert status == 403
    await page.get_by_role("link", name="Workers").click()
    await page.get_by_text("it needs the permission OPERATE").wait_for()
    await page.get_by_role("button", name="Sign out").click()
    await field.wait_for()
    await page.reload()
    await field.wait_for()
    assert operator.effects(file) == []


async def test_an_operators_actions_are_audited(operator: Installation, viewer: Viewer, stack: Stack) -> None:
    key = await operator_key(stack)
    async with client_of(stack, key, "acme") as acme:
        other = await Installation(stack, acme).submit("sim-hello", "A task of acme")
    page = await viewer.opens("tasks")
    await page.get_by_label("API key").fill(key)
    await page.keyboard.press("Enter")
    await page.get_by_label("Tenant").select_option("acme")
    await page.locator(f'.rows a[href="#/tasks/{other}"]').wait_for(timeout=PATIENCE)
    await page.goto(f"{viewer.url}/console/#/workers")
    await page.get_by_role("button", name="Drain …").first.click()
    await page.get_by_label("Reason").fill("ticket 7")
    await page.get_by_role("button", name="Drain", exact=True).click()
    await page.get_by_text("draining").first.wait_for(timeout=PATIENCE)
    await page.goto(f"{viewer.url}/console/#/audit")
    record = page.locator("tbody tr").filter(has_text="AdminService/DrainWorker")
    await record.first.wait_for(timeout=PATIENCE)
    text = await record.first.inner_text()
    assert "127.0.0.1" in text
    assert "key/" in text
