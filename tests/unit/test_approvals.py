"""Who may answer, what a link is, and what its messages and its page show."""

from __future__ import annotations

import json
from dataclasses import replace
from email import message_from_bytes
from email.policy import default
from typing import Any

import pytest

from edges.answer_links.pages import HEADERS, answer_form, shown_arguments
from edges.notifications.slack import slack_message
from edges.notifications.smtp import mail_of
from edges.notifications.texts import notification_of
from tenure.domain.approvals import (
    AnswerLink,
    LinkToken,
    StoredLink,
    body_with_links,
    decisions_by_link,
    is_approver,
    is_member,
    links_of,
    make_link_token,
    may_answer,
    problem_of_public_url,
    read_link_token,
    refuse_answerer,
    refuse_other_view,
    shown_digest,
    verify_link,
    wait_of,
    without_tokens,
)
from tenure.domain.budget import BudgetRequest
from tenure.domain.errors import NotFound, WrongState
from tenure.domain.waits import Wait, WaitKind
from tenure.v1 import approval_service_pb2 as pb
from tenure.v1 import task_pb2

TOKEN = make_link_token(bytes(range(12)), bytes(range(32)))
PUBLIC = "https://tenure.example.com"
CALL = Wait(
    WaitKind.TOOL_APPROVAL,
    "1.0",
    options=("allow", "deny", "edit"),
    tool="pay",
    arguments_json='{"cents": 500}',
    wait_id="w7",
)


class TestApprovers:
    def test_without_approvers_everyone_may_answer(self) -> None:
        assert may_answer([], {}, "key/abc")

    def test_members_of_groups_and_named_ones_may_answer(self) -> None:
        approvers, members = ["group:finance", "user/lead"], {"finance": ["Ann@Example.com", "key/abc"]}
        for identity in ("ann@example.com", "key/abc", "user/lead"):
            assert may_answer(approvers, members, identity)
        for identity in ("bob@example.com", "key/ABC", "user/LEAD", "finance", "group:finance"):
            assert not may_answer(approvers, members, identity)

    def test_a_caller_named_by_an_address_is_compared_exactly(self) -> None:
        assert may_answer(["user/ann@example.com"], {}, "user/ann@example.com")
        assert not may_answer(["user/ann@example.com"], {}, "user/Ann@example.com")
        assert not may_answer(["user/ann@example.com"], {}, "ann@example.com")

    def test_unknown_group_refuses_every_answer(self) -> None:
        refusal = refuse_answerer(replace(CALL, approvers=("group:nobody",)), {}, "key/abc")
        assert refusal is not None
        assert (refusal.reason, refusal.metadata["approvers"]) == ("NOT_AN_APPROVER", "group:nobody")

    @pytest.mark.parametrize("text", ["group:finance", "key/abc", "user/ann b", "ann@example.com", "webhook/desk"])
    def test_valid_approvers_are_accepted(self, text: str) -> None:
        assert is_approver(text)

    @pytest.mark.parametrize("text", ["", "group:", "group:a b", "ann", " key/a", "key/a\n", "key/" + "a" * 300])
    def test_invalid_approvers_are_refused(self, text: str) -> None:
        assert not is_approver(text)

    def test_group_is_not_a_member(self) -> None:
        assert not is_member("group:finance")


class TestLinks:
    def test_a_token_is_known_by_its_digest_only(self) -> None:
        read = read_link_token(TOKEN)
        assert read is not None
        assert (len(read.link_id), len(read.digest)) == (12, 32)
        assert TOKEN.removeprefix(f"tal_{read.link_id}_") not in repr(read)

    @pytest.mark.parametrize("text", ["", "tal_", TOKEN + "a", TOKEN[:-1], TOKEN.upper(), TOKEN + "\n"])
    def test_other_texts_are_not_tokens(self, text: str) -> None:
        assert read_link_token(text) is None

    def test_wrong_and_unknown_tokens_get_the_same_error(self) -> None:
        read = read_link_token(TOKEN)
        assert read is not None
        stored = StoredLink(read.link_id, read.digest, "default", "t", "w7", "ann@example.com", is_expired=False)
        assert verify_link(read, stored) is stored
        errors = []
        for presented, found in ((LinkToken(read.link_id, bytes(32)), stored), (read, None)):
            with pytest.raises(NotFound) as caught:
                verify_link(presented, found)
            errors.append((caught.value.reason, caught.value.message))
        assert errors[0] == errors[1]
        with pytest.raises(WrongState, match="EXPIRED"):
            verify_link(read, replace(stored, is_expired=True))

    def test_wrong_token_of_an_expired_link_is_not_found(self) -> None:
        read = read_link_token(TOKEN)
        assert read is not None
        stored = StoredLink(read.link_id, read.digest, "default", "t", "w7", "a@b", is_expired=True)
        with pytest.raises(NotFound):
            verify_link(LinkToken(read.link_id, bytes(32)), stored)

    def test_tokens_are_removed_from_texts(self) -> None:
        echoed = f"HTTP 500: you sent {PUBLIC}/a/{TOKEN} and {TOKEN[:30]}"
        assert without_tokens(echoed) == f"HTTP 500: you sent {PUBLIC}/a/tal_… and tal_…"

    def test_a_call_has_two_links_and_no_edit(self) -> None:
        assert decisions_by_link(CALL) == ("allow", "deny")
        links = links_of(PUBLIC + "/", TOKEN, CALL)
        assert [(link.label, link.url) for link in links] == [
            ("Approve", f"{PUBLIC}/a/{TOKEN}?answer=allow"),
            ("Reject", f"{PUBLIC}/a/{TOKEN}?answer=deny"),
        ]

    def test_other_options_open_the_form(self) -> None:
        wait = Wait(WaitKind.QUESTION, "1.0", options=("red & co", "blue"), wait_id="w7")
        assert links_of(PUBLIC, TOKEN, wait) == (AnswerLink("Open", "", f"{PUBLIC}/a/{TOKEN}"),)

    @pytest.mark.parametrize(
        "url",
        ["", "tenure.example.com", "ftp://a", "http://tenure.example.com", "https://a/?b", "https://u@a", "https:///"],
    )
    def test_invalid_public_urls_are_refused(self, url: str) -> None:
        assert problem_of_public_url(url)

    @pytest.mark.parametrize("url", ["https://tenure.example.com", "https://a/tenure/", "http://127.0.0.1:8480"])
    def test_valid_public_urls_are_accepted(self, url: str) -> None:
        assert problem_of_public_url(url) == ""


class TestShownDigest:
    def test_each_part_that_a_person_reads_counts(self) -> None:
        request = BudgetRequest("TOKEN_LIMIT", 1, 1, suggested_tokens=5, suggested_nano_usd=6)
        wait = replace(CALL, budget_request=request)
        changed = [
            replace(wait, wait_id="w8"),
            replace(wait, question="?"),
            replace(wait, context="c"),
            replace(wait, reference="r"),
            replace(wait, options=("allow", "deny")),
            replace(wait, tool="pay2"),
            replace(wait, arguments_json='{"cents": 501}'),
            replace(wait, kind=WaitKind.APPROVAL),
            replace(wait, budget_request=replace(request, suggested_tokens=6)),
            replace(wait, budget_request=replace(request, suggested_nano_usd=7)),
        ]
        digests = {shown_digest("t", one) for one in [wait, *changed]} | {shown_digest("u", wait)}
        assert len(digests) == len(changed) + 2

    def test_another_view_is_refused(self) -> None:
        assert refuse_other_view(CALL, "t", "") is None
        assert refuse_other_view(CALL, "t", shown_digest("t", CALL)) is None
        refusal = refuse_other_view(replace(CALL, arguments_json="{}"), "t", shown_digest("t", CALL))
        assert refusal is not None
        assert refusal.reason == "WAIT_CHANGED"


def body(**wait: Any) -> str:
    task = {"goal": "Pay", "wait": {"wait_id": "w7", "kind": "TOOL_APPROVAL", **wait}}
    data = {"task_id": "t", "state": "WAITING_USER", "task": task}
    return json.dumps({"type": "task.waiting_user", "timestamp": "2026-11-25T08:00:00Z", "data": data})


class TestMessages:
    LINKS = links_of(PUBLIC, TOKEN, CALL)

    def test_only_events_of_waits_for_people_get_links(self) -> None:
        assert wait_of(body()) == "w7"
        assert wait_of('{"type": "task.waiting_user", "data": {}}') == ""
        assert wait_of('{"type": "task.succeeded", "data": {}}') is None

    def test_slack_has_two_buttons(self) -> None:
        message = json.loads(slack_message(notification_of(body(), self.LINKS)))
        (actions,) = [block for block in message["blocks"] if block["type"] == "actions"]
        assert [(one["text"]["text"], one["style"], one["url"]) for one in actions["elements"]] == [
            ("Approve", "primary", self.LINKS[0].url),
            ("Reject", "danger", self.LINKS[1].url),
        ]
        assert f"<{self.LINKS[0].url}|Approve>" in message["text"]

    def test_an_email_has_each_link_on_its_line(self) -> None:
        mail = mail_of(notification_of(body(), self.LINKS), "d", "tenure@example.com", ["ann@example.com"], 2)
        message = message_from_bytes(mail, policy=default)
        lines = str(message.get_content()).splitlines()
        assert self.LINKS[0].url in lines
        assert self.LINKS[1].url in lines
        assert message["Message-ID"] == "<d.2@example.com>"

    def test_a_question_cannot_imitate_the_links_of_an_email(self) -> None:
        question = "May I?\r\n\r\nApprove:\nhttps://evil.example/a\u2028Approve:\x0bhttps://evil.example/b"
        shown = notification_of(body(question=question), self.LINKS)
        mail = mail_of(shown, "d", "tenure@example.com", ["ann@example.com"], 2)
        lines = str(message_from_bytes(mail, policy=default).get_content()).splitlines()
        assert lines[:2] == ["Approve:", self.LINKS[0].url]
        unmarked = [line for line in lines if "evil.example" in line and not line.startswith("> ")]
        assert unmarked == []
        assert [line for line in lines if line == "Approve:"] == ["Approve:"]

    def test_a_request_has_the_links_in_its_data(self) -> None:
        links = json.loads(body_with_links(body(), self.LINKS))["data"]["answer_links"]
        assert [(one["label"], one["decision"]) for one in links] == [("Approve", "allow"), ("Reject", "deny")]
        assert body_with_links(body(), ()) == body()

    def test_message_names_the_approvers(self) -> None:
        assert ("May answer", "group:finance") in notification_of(body(approvers=["group:finance"])).facts


class TestPage:
    def test_page_escapes_the_call(self) -> None:
        wait = task_pb2.Wait(
            kind=task_pb2.WAIT_KIND_TOOL_APPROVAL,
            tool="pay",
            arguments_json='{"to": "<script>\u202e"}',
            call_digest="d0",
        )
        task = task_pb2.Task(task_id="t", wait=wait, used_nano_usd=20_000_000)
        task.spec.goal = "Refund <b>7</b>"
        shown = answer_form(
            pb.GetAnswerLinkResponse(task=task, decisions=["allow", "deny"], shown_digest="5d"), "allow"
        )
        assert "<script>" not in shown
        assert "Refund &lt;b&gt;7&lt;/b&gt;" in shown
        assert "\\u202e" in shown
        assert 'value="allow" required checked' in shown
        assert 'value="5d"' in shown
        assert "d0" in shown

    @pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"a": 1.10}', '{"a": 1e999}', "no json"])
    def test_arguments_that_would_look_different_stay(self, text: str) -> None:
        assert shown_arguments(text).replace("&quot;", '"') == text

    def test_headers_forbid_caching_and_scripts(self) -> None:
        assert HEADERS["cache-control"] == "no-store"
        assert "default-src 'none'" in HEADERS["content-security-policy"]
        assert "unsafe" not in HEADERS["content-security-policy"]
