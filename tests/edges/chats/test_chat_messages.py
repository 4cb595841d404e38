"""The text of a turn, and its chunks: every character once, whatever came live, was lost or was replaced."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from edges.a2a import door as a2a
from edges.a2a.shapes import question_message, task_json
from edges.chats import ag_ui, ai_chat
from edges.chats.ai_chat import UiMessageWriter
from edges.chats.conversation import ChatThread, message_request_id
from edges.chats.files import files_of
from edges.chats.text import ChatText, TextPart
from services.gateway.http.problems import HttpRefusal
from services.gateway.http.requests import NoQuery, SubmitBody
from tenure.domain.budget import TokenUsage
from tenure.domain.errors import InvalidRequest
from tenure.domain.states import TaskState
from tenure.domain.task import InputFile
from tenure.sdk.events import (
    AssistantMessageEvent,
    Event,
    LiveTextEvent,
    ModelAttemptEvent,
    ModelFailureEvent,
    TransitionEvent,
)
from tenure.sdk.from_wire import task_info
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.validators import validate


def live(text: str, offset: int = 0, *, block: int = 0, step: int = 1, replaces: bool = False) -> LiveTextEvent:
    return LiveTextEvent(
        kind="live_text", sequence=None, step=step, text=text, block=block, offset=offset, replaces=replaces
    )


def answer(*texts: str, step: int = 1) -> AssistantMessageEvent:
    return AssistantMessageEvent(
        kind="assistant_message",
        sequence=6,
        step=step,
        attempt_number=1,
        text="\n\n".join(texts),
        content=[{"type": "text", "text": text} for text in texts],
        model="sim",
        stop_reason="end_turn",
        usage=TokenUsage(),
        usage_estimated=False,
        latency_seconds=0.1,
    )


def shown(parts: Iterable[TextPart]) -> dict[str, str]:
    """What a page shows: the text of each closed part."""
    texts, closed = dict[str, str](), dict[str, str]()
    for part in parts:
        if part.text is None:
            closed[part.part_id] = texts.pop(part.part_id)
        else:
            assert (part.part_id in texts) == bool(part.text), "a part is opened once, before its text"
            texts[part.part_id] = texts.get(part.part_id, "") + part.text
    assert texts == {}, "a part was left open"
    return closed


def test_live_text_is_completed_by_the_answer() -> None:
    text = ChatText()
    parts = [*text.live(live("Hel")), *text.live(live("lo", 3)), *text.answer(answer("Hello, you.", "More."))]
    assert shown(parts) == {"text-1-0": "Hello, you.", "text-1-1": "More."}


def test_text_that_was_lost_comes_with_the_answer() -> None:
    text = ChatText()
    parts = [*text.live(live("Hel")), *text.live(live("you", 7)), *text.answer(answer("Hello, you."))]
    assert shown(parts) == {"text-1-0": "Hello, you."}


def test_without_live_text_the_answer_is_whole() -> None:
    assert shown(ChatText().answer(answer("Hello."))) == {"text-1-0": "Hello."}


def test_another_answer_has_a_part_of_its_own() -> None:
    text = ChatText()
    parts = [*text.live(live("Good")), *text.answer(answer("Bad day."))]
    assert shown(parts) == {"text-1-0": "Good", "text-1-0-1": "Bad day."}
    text = ChatText()
    parts = [*text.live(live("Good")), *text.replace(), *text.live(live("Bad")), *text.answer(answer("Bad day."))]
    assert shown(parts) == {"text-1-0": "Good", "text-1-0-1": "Bad day."}


def chunks(*events: Event) -> list[dict[str, Any]]:
    writer = UiMessageWriter("t", "m")
    return [chunk for event in events for chunk in writer.event(event, is_end=event is events[-1])]


def attempt() -> ModelAttemptEvent:
    return ModelAttemptEvent(
        kind="model_attempt",
        sequence=5,
        step=1,
        attempt_number=1,
        model="sim",
        reserved_tokens=1,
        reserved_cost_usd=Decimal(0),
        budget=None,
    )


def failure() -> ModelFailureEvent:
    return ModelFailureEvent(
        kind="model_failure",
        sequence=6,
        step=1,
        attempt_number=1,
        error_class="OVERLOADED",
        message="",
        status_code=529,
        retryable=True,
        retry_after_seconds=None,
        usage=TokenUsage(),
    )


def ended(state: TaskState, result: str = "") -> TransitionEvent:
    return TransitionEvent(
        kind="transition",
        sequence=7,
        step=1,
        from_state=TaskState.RUNNING,
        state=state,
        reason="WHY",
        message="because",
        wait=None,
        calls_in_doubt=(),
        result=result,
        result_data=None,
        next_retry_at=None,
        budget=None,
    )


def test_text_of_a_failed_call_is_withdrawn() -> None:
    types = [chunk["type"] for chunk in chunks(attempt(), live("Good"), failure(), answer("Bad day."))]
    assert types == [
        *("start-step", "text-start", "text-delta", "text-end", "reset-step"),
        *("text-start", "text-delta", "text-end"),
    ]


def test_the_end_of_a_task_ends_the_message() -> None:
    written = chunks(attempt(), answer("Done."), ended(TaskState.SUCCEEDED, "Done."))
    assert [chunk["type"] for chunk in written[-3:]] == ["data-task", "finish-step", "finish"]
    assert [chunk["delta"] for chunk in written if chunk["type"] == "text-delta"] == ["Done."]
    failed = chunks(ended(TaskState.FAILED))
    assert failed[-2]["errorText"] == "the task ended as FAILED (WHY): because"
    assert failed[-1] == {"type": "finish", "finishReason": "error"}


def test_the_result_of_a_function_is_shown() -> None:
    written = chunks(ended(TaskState.SUCCEEDED, "42"))
    assert [chunk["delta"] for chunk in written if chunk["type"] == "text-delta"] == ["42"]


# Conversations, in front of a gateway that is only recording of.

ROOT, CHILD = "01900000-0000-7000-8000-000000000001", "01900000-0000-7000-8000-000000000002"


class ChatCall:
    """A call whose methods answer what the test says, and are noted."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers, self.requests = answers, list[tuple[str, Any]]()
        self.stubs = SimpleNamespace(tasks=SimpleNamespace(**{name: name for name in METHODS}))

    async def one(self, method: str, message: Any, *, timeout: float | None = None) -> Any:
        self.requests.append((method, message))
        return self.answers[method].pop(0)

    def sent(self, method: str) -> list[Any]:
        return [message for name, message in self.requests if name == method]


METHODS = ("ListTasks", "ListTaskEntries", "ResumeTask", "SendMessage", "SubmitTask", "ForkTask")


def thread(call: ChatCall, **options: Any) -> ChatThread:
    recording: Any = call
    return ChatThread(recording, "c1", SubmitBody(**options))


def task(task_id: str, *, exclusive: bool) -> task_pb2.Task:
    source = task_pb2.Source(kind=task_pb2.SOURCE_KIND_CONVERSATION, source_id="c1", exclusive=exclusive)
    return task_pb2.Task(task_id=task_id, root_task_id=ROOT, spec=task_pb2.TaskSpec(source=source))


async def test_sub_agent_is_not_part_of_the_conversation() -> None:
    """It is newer than its parent, and has its source."""
    pages = [
        api.ListTasksResponse(tasks=[task(CHILD, exclusive=False)], next_page_token="more"),
        api.ListTasksResponse(tasks=[task(CHILD, exclusive=False), task(ROOT, exclusive=True)]),
    ]
    call = ChatCall(ListTasks=pages)
    newest = await thread(call).newest()
    assert newest is not None
    assert newest.task_id == ROOT
    assert [request.page_token for request in call.sent("ListTasks")] == ["", "more"]
    assert (
        await thread(ChatCall(ListTasks=[api.ListTasksResponse(tasks=[task(CHILD, exclusive=False)])])).newest() is None
    )


async def test_the_request_id_of_a_first_message_is_its_own() -> None:
    """With one of the options, a repeat of the message would not be found, and be said twice."""
    submitted = api.SubmitTaskResponse(task=task(ROOT, exclusive=True))
    call = ChatCall(ListTasks=[api.ListTasksResponse()], SubmitTask=[submitted])
    await thread(call, request_id="of the page").say("c1/m1", "hello")
    assert [request.request_id for request in call.sent("SubmitTask")] == ["c1/m1"]


async def test_a_text_answers_the_wait_of_its_interrupt_and_no_other() -> None:
    """The task may have got its answer, wait for something else, or have ended: then the text is not for it."""
    resolution = ledger_pb2.WaitResolution(wait_id="w7")
    entry = ledger_pb2.Entry(sequence=8, body=ledger_pb2.EntryBody(wait_resolution=resolution))
    call = ChatCall(
        ResumeTask=[api.ResumeTaskResponse()], ListTaskEntries=[api.ListTaskEntriesResponse(entries=[entry])]
    )
    body = ag_ui.RunBody(
        threadId="c1", runId="r2", resume=({"interruptId": f"{ROOT}/w7/", "status": "resolved", "payload": "blue"},)
    )
    recording: Any = call
    turn = await ag_ui._turn(recording, thread(call), body)
    assert (turn.task_id, turn.after_sequence) == (ROOT, 8)
    (request,) = call.sent("ResumeTask")
    assert (request.task_id, request.wait_id, request.reply) == (ROOT, "w7", "blue")


@pytest.mark.parametrize("protocol", ["a2a", "ag_ui"])
async def test_a_denial_with_edited_arguments_is_a_denial(protocol: str) -> None:
    """A form sends its fields with each answer."""
    resolution = ledger_pb2.WaitResolution(wait_id="w7")
    entry = ledger_pb2.Entry(sequence=8, body=ledger_pb2.EntryBody(wait_resolution=resolution))
    entries = api.ListTaskEntriesResponse(entries=[entry])
    call = ChatCall(ResumeTask=[api.ResumeTaskResponse()], ListTaskEntries=[entries, entries])
    recording: Any = call
    answer = {"approved": False, "editedArgs": {"cents": 1}}
    if protocol == "a2a":
        data = {"approvalId": f"{ROOT}/w7/d1", **answer}
        await a2a._turn_of_task(recording, task(ROOT, exclusive=True), "m2", "", data)
    else:
        resumed = {"interruptId": f"{ROOT}/w7/d1", "status": "resolved", "payload": answer}
        await ag_ui._turn(recording, thread(call), ag_ui.RunBody(threadId="c1", runId="r2", resume=(resumed,)))
    (request,) = call.sent("ResumeTask")
    assert (request.decision, request.edited_arguments_json, request.call_digest) == ("deny", "", "d1")


@pytest.mark.parametrize("protocol", ["a2a", "ag_ui", "ai_chat"])
async def test_approvals_of_one_wait_are_one_answer(protocol: str) -> None:
    """A wait takes one answer: the second of two would be refused."""
    resolution = ledger_pb2.WaitResolution(wait_id="w7")
    entry = ledger_pb2.Entry(sequence=8, body=ledger_pb2.EntryBody(wait_resolution=resolution))
    entries = api.ListTaskEntriesResponse(entries=[entry])
    call = ChatCall(ResumeTask=[api.ResumeTaskResponse()], ListTaskEntries=[entries, entries])
    recording: Any = call
    ids = [f"{ROOT}/w7/d1/3.0", f"{ROOT}/w7/d2/3.1"]
    if protocol == "a2a":
        data = [{"approvalId": ids[0], "approved": True}, {"approvalId": ids[1], "comment": "no"}]
        await a2a._turn_of_task(recording, task(ROOT, exclusive=True), "m2", "", data)
    elif protocol == "ag_ui":
        answers = ({"approved": True}, {"comment": "no"})
        resumed = [
            {"interruptId": one, "status": "resolved", "payload": said} for one, said in zip(ids, answers, strict=True)
        ]
        await ag_ui._turn(recording, thread(call), ag_ui.RunBody(threadId="c1", runId="r2", resume=tuple(resumed)))
    else:
        approvals = [{"id": ids[0], "approved": True}, {"id": ids[1], "approved": False, "reason": "no"}]
        parts = [{"state": "approval-responded", "approval": one} for one in approvals]
        await ai_chat._answered(recording, thread(call), {"parts": parts})
    (request,) = call.sent("ResumeTask")
    assert (request.wait_id, request.WhichOneof("answer"), request.call_digest) == ("w7", None, "")
    decided = [(one.call_id, one.decision, one.call_digest, one.comment) for one in request.calls]
    assert decided == [("3.0", "allow", "d1", ""), ("3.1", "deny", "d2", "no")]


@pytest.mark.parametrize("other", ["w7/d2", "w7", "w7/d1/3.1/x"])
async def test_approvals_that_do_not_fit_together_are_refused(other: str) -> None:
    """The gateway refuses a decision without a call. None of them may be lost, and none may be an internal error."""
    for ids in ([f"{ROOT}/w7/d1/3.0", f"{ROOT}/{other}"], [f"{ROOT}/{other}", f"{ROOT}/w7/d1/3.0"]):
        request = ai_chat._request_of([ai_chat.Approval(one, is_approved=True) for one in ids])
        assert len(request.calls) == 2
        with pytest.raises(InvalidRequest, match="call_id"):
            validate(request)


async def test_a_repeated_approval_is_one_decision() -> None:
    call = ChatCall(ResumeTask=[api.ResumeTaskResponse()])
    recording: Any = call
    await ai_chat.answer_approvals(recording, [ai_chat.Approval(f"{ROOT}/w7/d1", is_approved=False)] * 2)
    (request,) = call.sent("ResumeTask")
    assert (request.decision, list(request.calls)) == ("deny", [])


def test_each_call_of_a_wait_has_an_approval() -> None:
    calls = [task_pb2.WaitingCall(call_id=f"3.{index}", tool="pay", arguments_json="{}") for index in range(2)]
    for each in calls:
        each.call_digest = "d"
    wait = task_info(
        task_pb2.Task(
            state=task_pb2.TASK_STATE_WAITING_USER,
            wait=task_pb2.Wait(
                wait_id="w7", kind=task_pb2.WAIT_KIND_TOOL_APPROVAL, call_id="3.0", tool="pay", calls=calls
            ),
        )
    ).wait
    assert wait is not None
    ids = [f"{ROOT}/w7/d/3.0", f"{ROOT}/w7/d/3.1"]
    parts = question_message(task(ROOT, exclusive=True), wait)["parts"]
    assert [part["data"]["approvalId"] for part in parts[1:]] == ids
    interrupts = ag_ui.AgUiWriter("c1", "r1", ROOT)._interrupts(wait)
    assert [(one["id"], one["toolCallId"]) for one in interrupts] == [
        (identity, f"{ROOT}/{call.call_id}") for identity, call in zip(ids, calls, strict=True)
    ]


async def test_an_approval_of_another_task_is_refused() -> None:
    call = ChatCall(ListTaskEntries=[api.ListTaskEntriesResponse()])
    recording: Any = call
    data = {"approvalId": f"{CHILD}/w7/d1", "approved": True}
    with pytest.raises(InvalidRequest, match="approvalId"):
        await a2a._turn_of_task(recording, task(ROOT, exclusive=True), "m2", "", data)
    assert call.sent("ResumeTask") == []


async def test_a_run_without_a_thread_is_refused() -> None:
    """The tasks of the thread "" would be those of all conversations of the tenant."""
    call = ChatCall(ListTasks=[api.ListTasksResponse(tasks=[task(ROOT, exclusive=True)])])
    body = ag_ui.RunBody(threadId="", runId="r1", messages=({"role": "user", "id": "m1", "content": "hello"},))
    recording: Any = call
    with pytest.raises(InvalidRequest, match="threadId"):
        await ag_ui._turn(recording, thread(call), body)


@pytest.mark.parametrize("parts", [5, "text", {"type": "text"}, None])
async def test_parts_without_a_list_are_refused(parts: Any) -> None:
    body = ai_chat.ChatBody(id="c1", messages=({"role": "assistant", "id": "m2", "parts": parts},))
    recording: Any = ChatCall()
    with pytest.raises(InvalidRequest):
        await ai_chat.chat(recording, NoQuery(), body)


async def test_a_message_does_not_pass_an_approval() -> None:
    """Its turn would never end, and would hide the approval."""
    waits = task(ROOT, exclusive=True)
    waits.state, waits.sequence = task_pb2.TASK_STATE_WAITING_USER, 7
    waits.wait.CopyFrom(task_pb2.Wait(wait_id="w7", kind=task_pb2.WAIT_KIND_TOOL_APPROVAL, tool="pay"))
    call = ChatCall(
        ListTasks=[api.ListTasksResponse(tasks=[waits])],
        ListTaskEntries=[api.ListTaskEntriesResponse(), api.ListTaskEntriesResponse()],
        SendMessage=[api.SendMessageResponse()],
    )
    with pytest.raises(HttpRefusal) as caught:
        await thread(call).say("c1/m2", "hurry")
    assert (caught.value.status, caught.value.reason) == (409, "WAITS_FOR_APPROVAL")
    assert call.sent("SendMessage") == []


async def test_a_long_conversation_is_not_read_to_find_a_turn() -> None:
    """Only the entries that begin turns: the answers of models and tools may have megabytes."""
    begun = ledger_pb2.Entry(
        sequence=1, body=ledger_pb2.EntryBody(submitted=ledger_pb2.TaskSubmitted(request_id="c1/m1"))
    )
    message = ledger_pb2.UserMessage(request_id="c1/m2", text="and now?")
    asked = ledger_pb2.Entry(sequence=40, body=ledger_pb2.EntryBody(user_message=message))
    entries = api.ListTaskEntriesResponse(entries=[begun, asked])
    for message_id, after in (("c1/m1", 1), ("c1/m2", 40)):
        call = ChatCall(
            ListTasks=[api.ListTasksResponse(tasks=[task(ROOT, exclusive=True)])], ListTaskEntries=[entries]
        )
        turn = await thread(call).say(message_id, "again")
        assert (turn.task_id, turn.after_sequence) == (ROOT, after)
        assert {tuple(request.kinds) for request in call.sent("ListTaskEntries")} == {
            ("submitted", "forked", "user_message", "wait_resolution")
        }


@pytest.mark.parametrize(("first", "second"), [(("a/b", "c"), ("a", "b/c")), (("a%2Fb", "c"), ("a/b", "c"))])
def test_two_messages_never_have_one_request_id(first: tuple[str, str], second: tuple[str, str]) -> None:
    assert message_request_id(*first) != message_request_id(*second)
    assert message_request_id("chat-1", "m:1") == "chat-1/m:1"  # as it was for ids without a slash


PHOTO = InputFile("photo.png", b"photo")
IN_BASE64 = b64encode(PHOTO.content).decode()
NAMED = {"filename": PHOTO.path}
FILES: dict[str, Any] = {
    "ai": {**NAMED, "type": "file", "mediaType": "image/png", "url": f"data:image/png;base64,{IN_BASE64}"},
    "ag_ui": {**NAMED, "type": "binary", "mimeType": "image/png", "data": IN_BASE64},
    "a2a": {**NAMED, "mediaType": "image/png", "raw": IN_BASE64},
}
TEXT = {"type": "text", "text": "Look."}


async def say_by(protocol: str, call: ChatCall, part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recording: Any = call
    said: dict[str, Any] = {"role": "user", "id": "m1"}
    match protocol:
        case "ai":
            monkeypatch.setattr(ai_chat, "_stream", AsyncMock())
            body = ai_chat.ChatBody(id="c1", messages=({**said, "parts": [TEXT, part]},))
            await ai_chat.chat(recording, NoQuery(), body)
        case "ag_ui":
            run = ag_ui.RunBody(threadId="c1", runId="r1", messages=({**said, "content": [TEXT, part]},))
            await ag_ui._turn(recording, thread(call), run)
        case _:
            await a2a._turn(recording, {"message": {"messageId": "m1", "contextId": "c1", "parts": [TEXT, part]}})


@pytest.mark.parametrize("protocol", FILES)
async def test_a_file_of_a_message_is_one_of_the_submit(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted = api.SubmitTaskResponse(task=task(ROOT, exclusive=True))
    call = ChatCall(ListTasks=[api.ListTasksResponse()], SubmitTask=[submitted])
    await say_by(protocol, call, FILES[protocol], monkeypatch)
    (request,) = call.sent("SubmitTask")
    assert [(file.path, file.content) for file in request.files] == [(PHOTO.path, PHOTO.content)]


@pytest.mark.parametrize(
    ("protocol", "part"),
    [
        ("ai", {"type": "file", "mediaType": "image/png", "url": "https://example.com/photo.png"}),
        ("ag_ui", {"type": "image", "source": {"type": "url", "value": "https://example.com/photo.png"}}),
        ("ag_ui", {"type": "binary", "mimeType": "image/png", "id": "7"}),
        ("ag_ui", {**FILES["ag_ui"], "data": "no base64!"}),
        ("a2a", {"url": "https://example.com/photo.png"}),
    ],
)
async def test_a_file_without_its_bytes_is_refused(protocol: str, part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tenure fetches nothing that a message names."""
    with pytest.raises((InvalidRequest, HttpRefusal), match="base64"):
        await say_by(protocol, ChatCall(), part, monkeypatch)


def test_a_file_without_a_name_is_named_after_its_type() -> None:
    (file,) = files_of([{"type": "image", "source": {"type": "data", "value": IN_BASE64, "mimeType": "image/png"}}], "")
    assert (file.path, file.content) == ("file.png", PHOTO.content)


@pytest.mark.parametrize("method", ["SendMessage", "ForkTask", "ResumeTask"])
async def test_files_go_with_each_kind_of_message(method: str) -> None:
    newest = task(ROOT, exclusive=True)
    if method == "ForkTask":
        newest.state = task_pb2.TASK_STATE_SUCCEEDED
    elif method == "ResumeTask":
        newest.wait.CopyFrom(task_pb2.Wait(wait_id="w7", kind=task_pb2.WAIT_KIND_QUESTION))
    call = ChatCall(
        ListTasks=[api.ListTasksResponse(tasks=[newest])],
        ListTaskEntries=[api.ListTaskEntriesResponse(), api.ListTaskEntriesResponse()],
        SendMessage=[api.SendMessageResponse()],
        ForkTask=[api.ForkTaskResponse(task=newest)],
        ResumeTask=[api.ResumeTaskResponse()],
    )
    await thread(call).say("c1/m2", "And this?", [PHOTO])
    (request,) = call.sent(method)
    assert [(file.path, file.content) for file in request.files] == [(PHOTO.path, PHOTO.content)]


def test_outputs_are_artifacts_with_addresses() -> None:
    ended = task(ROOT, exclusive=True)
    ended.state = task_pb2.TASK_STATE_SUCCEEDED
    for kind, uri in (("report", "workspace:out/first page.md"), ("pull_request", "https://git.example/7")):
        ended.outputs.add(kind=kind, uri=uri, state=tool_pb2.OUTPUT_STATE_STATED, call_id=f"{len(ended.outputs)}.0")
    report, pull_request = task_json(ended, base_url="https://gateway")["artifacts"]
    address = f"https://gateway/v1/tasks/{ROOT}/files/out/first%20page.md"
    assert (report["name"], report["parts"]) == ("report", [{"url": address, "filename": "first page.md"}])
    assert pull_request["parts"] == [{"url": "https://git.example/7"}]
