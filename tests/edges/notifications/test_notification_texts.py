"""What a person reads of an event, in Slack and by e-mail."""

from __future__ import annotations

import json
from email import message_from_bytes
from email.policy import default
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edges.notifications.slack import MAX_HEADER, MAX_SECTION, escape, slack_message
from edges.notifications.smtp import mail_of
from edges.notifications.texts import MAX_TITLE_CHARACTERS, Notification, notification_of
from tenure.domain.email_addresses import is_email_address
from tenure.domain.errors import InvalidRequest
from tenure.domain.outbound import origin_only
from tenure.domain.webhooks import KNOWN_EVENTS
from tenure.v1 import webhook_service_pb2 as pb
from tenure.validators import validate
from tenure.wire.webhook_service import new_secret, with_secret
from tests.unit.golden_files import compare_with_golden

TASK_ID = "01a20234-c154-73c4-bf83-294e50055e63"
ANN = "ann@example.com"
WAIT = {
    "wait_id": "w7",
    "kind": "APPROVAL",
    "question": "Pay 3 €?",
    "context": "Invoice 7",
    "options": ["approve", "deny"],
    "deadline_at": "2026-11-23T08:00:00.123456789Z",
    "at_deadline": "TIME_OUT",
    "arguments": {"iban": "DE99"},
}


def text(event: str, state: str = "", reason: str = "", **task: Any) -> Notification:
    data = {"task_id": TASK_ID, "state": state, "reason": reason}
    body = {"type": event, "timestamp": "2026-11-22T08:00:00Z", "data": {**data, "task": task}}
    return notification_of(json.dumps(body))


def said(shown: Notification) -> str:
    facts = [f"{name}: {value}" for name, value in shown.facts]
    sections = [f"{section.heading} | {len(section.text)} | {section.text[:60]}" for section in shown.sections]
    return "\n".join([shown.title, *facts, *sections, *(f"$ {command}" for command in shown.commands)])


def other(event: str, **data: Any) -> Notification:
    return notification_of(json.dumps({"type": event, "timestamp": "2026-11-22T08:00:00Z", "data": data}))


WAITS: dict[str, dict[str, Any]] = {
    "an approval": {},
    "an approval of a call": {"kind": "TOOL_APPROVAL", "options": ["allow", "deny", "edit"], "tool": "pay"},
    "an approval of two calls": {
        "kind": "TOOL_APPROVAL",
        "options": ["allow", "deny", "edit"],
        "tool": "pay",
        "calls": [{"call_id": "3.0", "tool": "pay", "arguments": "DE99"}, {"call_id": "3.1", "tool": "mail"}],
    },
    "an agent without progress": {"kind": "NO_PROGRESS", "options": ["continue"]},
    "a choice": {"options": ["red", "blue"]},
    "a wait of an operator": {"kind": "OPERATOR", "options": ["continue"]},
    "a question": {"kind": "QUESTION", "options": []},
    "a wait of a newer release": {"kind": "OF_A_NEWER_RELEASE", "options": []},
    "a request for budget": {"kind": "BUDGET", "options": ["approve", "deny"]},
}
ENDED: dict[str, Any] = {
    "goal": "Find it",
    "result": "r" * 9000,
    "cost_usd": 0.012345678,
    "usage": {"input_tokens": 1000, "output_tokens": 234},
    "budget": {"unpriced_calls": 2},
}
TREE_END: dict[str, Any] = {
    "type": "task.failed",
    "data": {
        "task_id": TASK_ID,
        "state": "FAILED",
        "task": {"budget": {"used_cost_usd": 2.5}},
        "sub_agents": {"FAILED": 1, "SUCCEEDED": 3},
    },
}
SUMMARY: dict[str, Any] = {
    "from_at": "2026-11-21T08:00:00+00:00",
    "to_at": "2026-11-22T08:00:00+00:00",
    "events": {"task.succeeded": 1200, "task.timed_out": 1},
    "tasks": [{"event": "task.timed_out", "task_id": TASK_ID, "goal": "Pay\nall"}, {"event": 7}],
}
WARNED = {"used_cost_usd": 8.0, "max_cost_usd": 10.0, "used_tokens": 5, "max_tokens": 1000}


class TestTemplates:
    def test_notifications_are_the_golden_file(self) -> None:
        """An event has no command that answers it, and an odd tenant has no command of its own."""
        goal, event = "Pay\nall", {**WAIT, "kind": "EVENT", "correlation_id": "$(reboot)"}
        shown = {
            title: text("task.waiting_user", "WAITING_USER", "APPROVAL_REQUESTED", goal=goal, wait={**WAIT, **changes})
            for title, changes in WAITS.items()
        }
        running = {"state": "WAITING_USER", "task": {"state": "RUNNING"}}
        shown |= {
            "a wait for an event": text("task.waiting_external", "WAITING_EXTERNAL", wait=event),
            "an escalation": text("task.wait_escalated", "WAITING_USER", goal=goal, wait=WAIT),
            "calls in doubt": text(
                "task.waiting_user", "WAITING_USER", "TOOL_IN_DOUBT", message="pay may have happened"
            ),
            "an end": text("task.succeeded", "SUCCEEDED", "FINAL_ANSWER", **ENDED),
            "a warning of the budget": text("task.budget_warning", "RUNNING", "BUDGET_WARNING", budget=WARNED),
            "a task that went on": other("task.waiting_user", **running),
            "another tenant": text("task.failed", "FAILED", tenant="acme"),
            "an odd tenant": text("task.failed", "FAILED", tenant="a;reboot"),
            "a test": other("webhook.test", name="desk"),
            "an end of a tree": notification_of(json.dumps(TREE_END)),
            "a summary": other("webhook.summary", **SUMMARY),
            "a gap": other("webhook.missed", from_at="2026-11-21T08:00:00Z"),
        }
        compare_with_golden("notifications.txt", {title: said(one) for title, one in shown.items()})

    def test_arguments_of_a_call_are_in_no_text(self) -> None:
        waits = {**WAIT, "kind": "TOOL_APPROVAL", "tool": "pay"}
        for event in ("task.waiting_user", "task.wait_escalated", "task.queued", "task.of_a_newer_release"):
            assert "DE99" not in str(text(event, "WAITING_USER", wait=waits))

    @pytest.mark.parametrize("task_id", ["", "x; reboot", TASK_ID + "\nreboot"])
    def test_an_odd_id_gets_no_command(self, task_id: str) -> None:
        body = {"type": "task.failed", "data": {"task_id": task_id}}
        assert notification_of(json.dumps(body)).commands == ()

    @given(
        st.sampled_from([*sorted(KNOWN_EVENTS), "task.wait_escalated", "webhook.test", "webhook.missed", "x.y", ""]),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=20),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["task_id", "task", "wait", "goal", "budget"]), inner)
            ),
        ),
    )
    @example("task.failed", {"task_id": "\x1e"})
    @example("task.failed", {"task_id": "\r\nBcc: eve@example.com"})
    def test_any_event_gives_a_text(self, event: str, data: Any) -> None:
        shown = notification_of(json.dumps({"type": event, "timestamp": data, "data": data}))
        assert 0 < len(shown.title) <= MAX_TITLE_CHARACTERS
        slack_message(shown)
        mail_of(shown, TASK_ID, "tenure@example.com", [ANN])


HOSTILE = st.text(st.characters(codec="utf-8") | st.sampled_from("<>&@!|\r\n\u202e`*"), max_size=500)


class TestSlack:
    @given(HOSTILE, st.integers(10, 200))
    def test_a_text_cannot_mention_or_link(self, hostile: str, most: int) -> None:
        escaped = escape(hostile, most)
        assert len(escaped) <= most
        assert not set(escaped) & {"<", ">"}
        plain = escaped.replace("&amp;", "").replace("&lt;", "").replace("&gt;", "")
        assert "&" not in plain

    @pytest.mark.parametrize("name", ["@here", "@channel", "@everyone", "@all", "@HERE"])
    def test_a_name_of_everyone_is_parted(self, name: str) -> None:
        assert name not in escape(f"<!here> {name} now", 100)

    def test_an_escape_is_never_cut(self) -> None:
        assert escape("<<<", 9) == "&lt;&lt;…"

    @given(HOSTILE, HOSTILE)
    def test_a_message_keeps_to_slacks_limits(self, goal: str, question: str) -> None:
        shown = text("task.waiting_user", "WAITING_USER", spec={"goal": goal}, wait={**WAIT, "question": question * 20})
        message = json.loads(slack_message(shown))
        header, *sections = message["blocks"]
        assert 0 < len(header["text"]["text"]) <= MAX_HEADER
        assert all(0 < len(block["text"]["text"]) <= MAX_SECTION for block in sections)
        assert len(message["blocks"]) <= 50
        assert len(message["text"]) <= 4000
        assert {block["text"]["type"] for block in sections[:-1]} == {"plain_text"}


class TestMail:
    def test_ids_are_not_encoded_however_long_the_senders_domain(self) -> None:
        domain = "notifications.eu-central-1.example-company.com"
        shown = text("task.succeeded", "SUCCEEDED")
        lines = mail_of(shown, TASK_ID, f"tenure@{domain}", [ANN], 20).decode().split("\r\n")
        assert f"References: <task-{TASK_ID}@{domain}>" in lines
        assert f"Message-ID: <{TASK_ID}.20@{domain}>" in lines

    @given(HOSTILE, HOSTILE)
    def test_no_text_adds_a_header_or_a_line(self, goal: str, result: str) -> None:
        shown = text("task.succeeded", "SUCCEEDED", spec={"goal": goal}, result=result)
        content = mail_of(shown, TASK_ID, "tenure@example.com", [ANN])
        message = message_from_bytes(content, policy=default)
        assert [name.lower() for name in message] == [
            "from",
            "to",
            "subject",
            "message-id",
            "date",
            "references",
            "auto-submitted",
            "content-type",
            "content-transfer-encoding",
            "mime-version",
        ]
        assert content.isascii()
        assert max(map(len, content.split(b"\r\n"))) <= 998
        assert b"\n" not in content.replace(b"\r\n", b"")

    @pytest.mark.parametrize(
        "address", ["a@b", ANN, "a.b+c=d@x-1.example", "o'hara@example.com", "a" * 64 + "@b.example"]
    )
    def test_plain_addresses_are_accepted(self, address: str) -> None:
        assert is_email_address(address)

    @pytest.mark.parametrize(
        "address",
        [
            "",
            "ann",
            "@example.com",
            "ann@",
            "ann@example.com\n",
            "ann@example.com\r\nBcc: x@y.example",
            "ann@example.com, bob@example.com",
            "Ann <ann@example.com>",
            "<ann@example.com>",
            '"ann"@example.com',
            "ann(x)@example.com",
            "ann@[127.0.0.1]",
            "ann@-x.example",
            "ann@x..example",
            ".ann@example.com",
            "ann.@example.com",
            "änn@example.com",
            "ann@exämple.com",
            "ann@example.com\u2028",
            "ann@example.com\x00",
            "ann smith@example.com",
            "a" * 65 + "@b.example",
            "a@" + "b" * 64 + ".example",
            "a@" + "b." * 130 + "example",
        ],
    )
    def test_invalid_addresses_are_refused(self, address: str) -> None:
        assert not is_email_address(address)


def create(kind: Any, **fields: Any) -> Any:
    return pb.CreateWebhookRequest(**{"name": "hook", "kind": kind, **fields})


class TestRequests:
    def test_slack_needs_a_url_and_e_mail_addresses(self) -> None:
        validate(create(pb.WEBHOOK_KIND_SLACK, url="https://hooks.slack.com/services/T/B/x"))
        validate(create(pb.WEBHOOK_KIND_EMAIL, email_addresses=[f"a{n}@example.com" for n in range(20)]))
        validate(create(pb.WEBHOOK_KIND_STANDARD, url="https://example.com"))

    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"kind": 9, "url": "https://example.com"}, "kind"),
            ({"kind": pb.WEBHOOK_KIND_SLACK}, "url"),
            ({"kind": pb.WEBHOOK_KIND_SLACK, "url": "https://a.b", "secret": new_secret()}, "secret"),
            ({"kind": pb.WEBHOOK_KIND_SLACK, "url": "https://a.b", "email_addresses": [ANN]}, "email_addresses"),
            ({"kind": pb.WEBHOOK_KIND_EMAIL}, "email_addresses"),
            ({"kind": pb.WEBHOOK_KIND_EMAIL, "email_addresses": [ANN], "url": "https://a.b"}, "url"),
            ({"kind": pb.WEBHOOK_KIND_EMAIL, "email_addresses": [ANN], "secret": new_secret()}, "secret"),
            ({"kind": pb.WEBHOOK_KIND_EMAIL, "email_addresses": [ANN, ANN.upper()]}, "email_addresses"),
            ({"kind": pb.WEBHOOK_KIND_EMAIL, "email_addresses": ["a@b\r\nBcc: c@d"]}, "email_addresses"),
            ({"kind": pb.WEBHOOK_KIND_EMAIL, "email_addresses": [f"a{n}@b" for n in range(21)]}, "email_addresses"),
        ],
    )
    def test_a_target_of_another_kind_is_refused(self, fields: Any, field: str) -> None:
        with pytest.raises(InvalidRequest) as refused:
            validate(create(**fields))
        assert field in {violation.field for violation in refused.value.violations}

    def test_only_signed_requests_get_a_secret(self) -> None:
        assert with_secret(create(pb.WEBHOOK_KIND_UNSPECIFIED)).secret
        assert with_secret(create(pb.WEBHOOK_KIND_STANDARD)).secret
        assert not with_secret(create(pb.WEBHOOK_KIND_SLACK)).secret
        assert not with_secret(create(pb.WEBHOOK_KIND_EMAIL)).secret

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("https://hooks.slack.com/services/T/B/secret", "https://hooks.slack.com/…"),
            ("https://chat.example:8443?key=secret", "https://chat.example:8443/…"),
            ("secret", "…"),
        ],
    )
    def test_secret_url_shows_its_host_only(self, url: str, shown: str) -> None:
        assert origin_only(url) == shown
