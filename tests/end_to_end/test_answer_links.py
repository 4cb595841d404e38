"""An answer link on a whole installation: from the webhook to the page of the gateway, and the task goes on."""

from __future__ import annotations

import html
import re
from urllib.parse import urlsplit

import httpx2
import pytest

from tenure.cli.exit_codes import Exit
from tenure.runtime.http.outbound_http import http_tls_context
from tenure.v1 import task_pb2
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation
from tests.support.fix_webhooks import MakeReceiver
from tests.support.patience import CALL_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]


@pytest.mark.nightly
async def test_a_link_is_opened_and_answers_once(installation: Installation, webhook_receiver: MakeReceiver) -> None:
    receiver, address = await webhook_receiver(), installation.stack.gateway_address
    create = ("webhooks", "create", "links", receiver.url, "--label", "hook=links", "--answer-links")
    made = await tenure(*create, address=address)
    assert made.code == Exit.OK, made.err
    receiver.secrets = [made.out.strip()]
    set_group = await tenure("approvers", "set", "desk", "webhook/links", address=address)
    assert set_group.code == Exit.OK, set_group.err
    policy = task_pb2.TaskPolicy(approvers=["group:desk"])
    task_id = await installation.submit("sim-question", labels={"hook": "links"}, policy=policy)
    (delivery,) = await receiver.until(1)
    assert delivery.valid == 1
    (link,) = delivery.data["answer_links"]
    assert link["url"].startswith(f"{installation.stack.http_url}/a/tal_")
    async with httpx2.AsyncClient(verify=http_tls_context(), timeout=CALL_SECONDS, trust_env=False) as browser:
        waits = await installation.client.get(task_id)
        refused = await tenure("resume", task_id, "--wait", waits.wait.wait_id, "--reply", "red", address=address)
        assert (refused.code, "may not answer" in refused.err) == (Exit.REFUSED, True)
        for method in ("GET", "HEAD", "GET"):
            page = await browser.request(method, link["url"])
            assert page.status_code == 200
        assert page.headers["referrer-policy"] == "no-referrer"
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["x-frame-options"] == "DENY"
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "Which colour" in html.unescape(page.text)
        assert (await installation.client.get(task_id)).sequence == waits.sequence
        shown = re.search(r'name="shown" value="([0-9a-f]{64})"', page.text)
        assert shown
        form = {"shown": shown[1], "reply": "blue"}
        headers = {"origin": "null", "sec-fetch-site": "same-origin"}  # as browsers send them without a referrer
        answered = await browser.post(link["url"], data=form, headers=headers)
        assert (answered.status_code, "tenure-error" in answered.headers) == (200, False)
        again = await browser.post(link["url"], data=form)
        assert (again.status_code, again.headers["tenure-error"]) == (410, "WAIT_OVER")
        guessed = await browser.get(link["url"][:-1])
        assert (guessed.status_code, guessed.headers["tenure-error"]) == (404, "ANSWER_LINK_NOT_FOUND")
        assert (await browser.post(link["url"], json=form)).status_code == 415
    ended = await installation.ended(task_id)
    assert (ended.state, "blue" in ended.result) == (task_pb2.TASK_STATE_SUCCEEDED, True)
    secret = urlsplit(link["url"]).path.split("_", 2)[2]
    logs = [log.read_text(errors="replace") for log in installation.stack.layout.logs.glob("*.log")]
    assert logs
    assert not any(secret in log for log in logs)
    (resolved,) = [one for one in await installation.entries(task_id) if one.body.HasField("wait_resolution")]
    assert resolved.body.wait_resolution.addressee == "webhook/links"
    assert (await tenure("webhooks", "delete", "links", address=address)).code == Exit.OK
    assert (await tenure("approvers", "delete", "desk", address=address)).code == Exit.OK
