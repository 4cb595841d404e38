"""What a change is called, who wants it, what is sent of it, and what an answer means."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from services.checkpoint.webhooks.sending import OutgoingDelivery, WebhookSettings, headers_of
from tenure.domain.errors import InvalidRequest
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import MOVES, TERMINAL, WAITING, TaskState
from tenure.domain.webhooks import (
    BUDGET_WARNING_EVENT,
    DEFAULT_EVENTS,
    LONGEST_RETRY_AFTER_SECONDS,
    MAX_BODY_BYTES,
    DeliveryState,
    FailureKind,
    WebhookKind,
    WebhookResponse,
    body_of,
    decide_delivery,
    event_of,
    http_failure,
    is_pattern,
    retry_after_seconds,
    smtp_failure,
    unknown_events,
    wants,
)
from tenure.v1 import task_pb2
from tenure.v1 import webhook_service_pb2 as pb
from tenure.validators import validate
from tenure.wire.webhook_service import new_secret, read_secret, secret_text

NOW = datetime(2026, 11, 22, 8, 0, tzinfo=UTC)
POLICY = RetryPolicy(max_attempts=4, initial_seconds=10.0, factor=4.0, cap_seconds=100.0)


class TestEvents:
    def test_default_events_are_ends_waits_and_warnings(self) -> None:
        names = {state for state in MOVES if wants([], event_of(state, "", cancel_requested=False))}
        assert names == TERMINAL | WAITING
        assert wants([], BUDGET_WARNING_EVENT)

    def test_a_requested_end_has_an_event_of_its_own(self) -> None:
        assert event_of(TaskState.WAITING_USER, "", cancel_requested=True) == "task.cancel_requested"
        assert event_of(TaskState.WAITING_USER, "", cancel_requested=False) == "task.waiting_user"

    def test_warning_is_not_another_change_of_state(self) -> None:
        response = event_of(TaskState.RUNNING, "BUDGET_WARNING", cancel_requested=False)
        assert response == BUDGET_WARNING_EVENT == "task.budget_warning"
        assert event_of(TaskState.RUNNING, "QUOTA_WARNING", cancel_requested=False) == "task.quota_warning"
        assert wants([], "task.quota_warning")

    def test_a_star_stands_for_the_last_part(self) -> None:
        assert wants(["task.*"], "task.running")
        assert not wants(["task.*"], "tasks.running")
        assert not wants(["task.running"], "task.running_out")

    def test_unknown_event_types_may_be_subscribed_to(self) -> None:
        assert is_pattern("lease.lost")
        assert unknown_events(["lease.lost", "task.suceeded", "task.failed", "task.*"]) == [
            "lease.lost",
            "task.suceeded",
        ]

    @pytest.mark.parametrize("text", ["", "*", "task.", ".task", "Task.failed", "task.*.x", "task failed", "t" * 101])
    def test_unknown_event_type_is_refused(self, text: Any) -> None:
        assert not is_pattern(text)

    def test_every_default_is_a_type(self) -> None:
        assert all(is_pattern(event) for event in DEFAULT_EVENTS)


class TestBodies:
    def test_body_has_type_time_and_data(self) -> None:
        decoded = json.loads(body_of("task.failed", NOW, {"task_id": "t"}))
        assert decoded == {"type": "task.failed", "timestamp": "2026-11-22T08:00:00Z", "data": {"task_id": "t"}}

    @given(
        st.text(st.characters(codec="utf-8"), max_size=50),
        st.integers(0, 40_000),
        st.integers(0, 40_000),
        st.integers(0, 40_000),
    )
    def test_body_of_a_large_task_is_bounded(self, text: str, result: int, goal: int, system: int) -> None:
        task = {
            "task_id": "t",
            "result": text * (result // 10),
            "result_data": [text] * (goal // 10),
            "system": text * (system // 10),
        }
        whole = json.dumps(task)
        body = body_of("task.succeeded", NOW, {"task_id": "t", "task": json.loads(whole)}, 20_000)
        decoded = json.loads(body)
        assert len(body.encode()) <= 20_000
        assert decoded["data"]["task_id"] == "t"
        assert ("truncated" in decoded) == (json.dumps(decoded["data"].get("task")) != whole)

    def test_longest_text_is_cut_first(self) -> None:
        data = {"task": {"result": "r" * 100_000, "goal": "g" * 10_000}}
        decoded = json.loads(body_of("task.succeeded", NOW, data))
        assert decoded["truncated"] == ["task.result"]
        assert decoded["data"]["task"]["goal"] == "g" * 10_000
        assert MAX_BODY_BYTES - 1000 < len(json.dumps(decoded, separators=(",", ":"))) <= MAX_BODY_BYTES

    def test_oversized_task_has_only_its_id(self) -> None:
        data = {"task_id": "t", "task": {"wait": {"arguments": "a" * 100_000}}}
        decoded = json.loads(body_of("task.waiting_user", NOW, data))
        assert (decoded["data"], decoded["truncated"]) == ({"task_id": "t"}, ["task"])


class TestVerdicts:
    @pytest.mark.parametrize("status", [200, 204, 299])
    def test_any_2xx_is_a_receipt(self, status: int) -> None:
        assert decide_delivery(WebhookResponse(status), 1, 0.5).state is DeliveryState.DELIVERED

    @pytest.mark.parametrize("status", [0, 100, 301, 307, 400, 404, 429, 500, 503])
    def test_anything_else_is_sent_again_until_the_tries_are_used_up(self, status: int) -> None:
        assert decide_delivery(WebhookResponse(status), 3, 0.5, POLICY).state is DeliveryState.PENDING
        assert decide_delivery(WebhookResponse(status), 4, 0.5, POLICY).state is DeliveryState.DEAD

    @given(st.integers(1, 3), st.floats(0, 1, exclude_max=True))
    def test_waits_have_full_jitter_and_grow_to_a_cap(self, attempts: int, random_fraction: float) -> None:
        wait = decide_delivery(WebhookResponse(500), attempts, random_fraction, POLICY).wait_seconds
        assert wait == random_fraction * min(100.0, 10.0 * 4.0 ** (attempts - 1))

    def test_retry_after_is_the_least_and_bounded(self) -> None:
        wanted = decide_delivery(WebhookResponse(503, retry_after_seconds=50.0), 1, 0.0, POLICY)
        assert (wanted.wait_seconds, wanted.hold_seconds) == (50.0, 50.0)
        assert decide_delivery(WebhookResponse(500, retry_after_seconds=50.0), 1, 0.0, POLICY).hold_seconds == 0.0
        assert (
            decide_delivery(WebhookResponse(429, retry_after_seconds=1e9), 1, 0.0, POLICY).hold_seconds
            == LONGEST_RETRY_AFTER_SECONDS
        )

    def test_status_410_pauses_and_keeps_deliveries(self) -> None:
        gone = http_failure(WebhookKind.STANDARD, 410)
        verdict = decide_delivery(WebhookResponse(410, failure=gone), 99, 0.5, POLICY)
        assert (verdict.state, verdict.pause_code) == (DeliveryState.PENDING, "GONE")

    @pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413])
    def test_slacks_refusal_of_a_request_is_final(self, status: int) -> None:
        failure = http_failure(WebhookKind.SLACK, status)
        assert decide_delivery(WebhookResponse(status, failure=failure), 1, 0.5).state is DeliveryState.DEAD
        assert http_failure(WebhookKind.STANDARD, status) is FailureKind.TEMPORARY

    @pytest.mark.parametrize("status", [302, 408, 425, 429, 500, 503])
    def test_slacks_other_failures_are_tried_again(self, status: int) -> None:
        assert http_failure(WebhookKind.SLACK, status) is FailureKind.TEMPORARY

    def test_a_refused_mail_is_final_and_a_refused_login_is_not(self) -> None:
        assert {smtp_failure(code) for code in (550, 552, 554)} == {FailureKind.FINAL}
        assert {smtp_failure(code) for code in (-1, 250, 421, 450, 530, 535)} == {FailureKind.TEMPORARY}
        refused = WebhookResponse(550, failure=smtp_failure(550))
        assert decide_delivery(refused, 1, 0.5).state is DeliveryState.DEAD

    def test_retry_after_is_read_as_seconds_and_as_a_date(self) -> None:
        assert retry_after_seconds(" 120 ", NOW) == 120.0
        later = (NOW + timedelta(seconds=90)).strftime("%a, %d %b %Y %H:%M:%S GMT")
        assert retry_after_seconds(later, NOW) == 90.0
        assert retry_after_seconds("Thu, 01 Jan 1970 00:00:00 GMT", NOW) == 0.0
        far = "Thu, 01 Jan 99999999999999999999 00:00:00 GMT"
        assert [retry_after_seconds(text, NOW) for text in ("", "soon", "-1", "1e9", far)] == [None] * 5

    @pytest.mark.parametrize(
        "date", ["01 Jan 99999999999999999999 00:00:00", "01 Jan 2027 00:00:00 +99999999999999999999"]
    )
    def test_a_date_that_no_calendar_has_is_ignored(self, date: str) -> None:
        """The answer counts all the same: a 410 still pauses the webhook."""
        assert retry_after_seconds(f"Fri, {date}", NOW) is None


class TestSignatures:
    def test_a_delivery_is_signed_with_each_valid_secret(self) -> None:
        old, new = read_secret(new_secret()), read_secret(new_secret())
        sent_at = datetime.now(UTC)
        headers = dict(headers_of(OutgoingDelivery(1, "id", '{"ü": 1}', 1, sent_at, "https://example.com", new, old)))
        first, second = headers["webhook-signature"].split(" ")
        for secret in (old, new):
            assert Webhook(secret_text(secret)).verify('{"ü": 1}'.encode(), headers) == {"ü": 1}
        assert Webhook(new).verify('{"ü": 1}', {**headers, "webhook-signature": first})
        assert Webhook(old).verify('{"ü": 1}', {**headers, "webhook-signature": second})

    @pytest.mark.parametrize("text", ["whsec_", "whsec_YQ==", "whsec_???", "d" * 44, "whsec_" + "A" * 92])
    def test_invalid_secret_is_refused(self, text: Any) -> None:
        with pytest.raises(ValueError, match="whsec_"):
            read_secret(text)


class TestSettings:
    def test_invalid_settings_are_reported_together(self) -> None:
        items = list(WebhookSettings(allowed_networks=("10.1.2.3/8",), lease_seconds=1.0).problems())
        assert len(items) == 2
        assert list(WebhookSettings().problems()) == []


def create(**fields: Any) -> Any:
    return pb.CreateWebhookRequest(**{"name": "hook", "url": "https://example.com/x?y=z", **fields})


class TestRequests:
    def test_a_name_and_a_url_are_all_a_webhook_needs(self) -> None:
        validate(create())
        validate(create(event_types=["task.*", "lease.lost"], secret=new_secret(), url="http://[2001:db8::1]:8080"))

    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"name": "00000000-0000-0000-0000-000000000000"}, "name"),
            ({"url": ""}, "url"),
            ({"url": "ftp://example.com"}, "url"),
            ({"url": "file:///etc/passwd"}, "url"),
            ({"url": "https://"}, "url"),
            ({"url": "https://a:b@example.com"}, "url"),
            ({"url": "https://example.com#x"}, "url"),
            ({"url": "https://example.com:99999"}, "url"),
            ({"url": "https://exa mple.com"}, "url"),
            ({"url": "https://example.com/\r\nx: y"}, "url"),
            ({"event_types": ["*"]}, "event_types"),
            ({"filter": task_pb2.TaskFilter(states=[task_pb2.TASK_STATE_FAILED])}, "filter.states"),
            ({"secret": "hunter2"}, "secret"),
        ],
    )
    def test_invalid_request_is_refused(self, fields: Any, field: str) -> None:
        with pytest.raises(InvalidRequest) as refused:
            validate(create(**fields))
        assert field in {violation.field for violation in refused.value.violations}
