"""The simulator is the oracle for valid conversations: it takes what the provider takes and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from devstack.simulator.http_server import ApiError
from devstack.simulator.request_checks import check_count, check_create

GOAL = {"role": "user", "content": "go"}


def tool_use(identity: Any, **arguments: Any) -> Any:
    return {"type": "tool_use", "id": identity, "name": "read_file", "input": arguments}


def result(identity: Any, content: str = "ok", **more: Any) -> Any:
    return {"type": "tool_result", "tool_use_id": identity, "content": content, **more}


def assistant(*blocks: Any) -> Any:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: Any) -> Any:
    return {"role": "user", "content": list(blocks)}


def text(words: Any) -> Any:
    return {"type": "text", "text": words}


def check(*messages: Any, **fields: Any) -> Any:
    return check_create({"model": "sim-hello", "max_tokens": 10, "messages": list(messages), **fields})


def refusal(*messages: Any, **fields: Any) -> Any:
    with pytest.raises(ApiError) as caught:
        check(*messages, **fields)
    assert caught.value.status == 400
    return caught.value.message


def test_a_tool_loop_with_one_message_for_all_results_is_valid() -> None:
    check(GOAL, assistant(text("two"), tool_use("t1"), tool_use("t2")), user(result("t2"), result("t1", is_error=True)))


def test_text_may_follow_results() -> None:
    check(GOAL, assistant(tool_use("t1")), user(result("t1"), text("and another thing")))


def test_messages_of_one_role_are_combined() -> None:
    check(GOAL, GOAL, assistant(tool_use("t1"), tool_use("t2")), user(result("t1")), user(result("t2"), text("more")))


CALLED = (GOAL, assistant(tool_use("t1")))
ANSWERED = (*CALLED, user(result("t1")))


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([GOAL, assistant(tool_use("t1"), tool_use("t2")), user(result("t1"))], "immediately after: t2."),
        (CALLED, "without `tool_result`"),
        ([*CALLED, user(text("well"), result("t1"))], "immediately after: t1"),
        ([GOAL, assistant(text("no tools")), user(result("t9"))], "unexpected `tool_use_id`"),
        ([*ANSWERED, assistant(text("hm")), user(result("t1"))], "unexpected `tool_use_id`"),
        ([*CALLED, user(result("t1"), result("t1"))], "each tool_use must have a single result"),
        ([*ANSWERED, *ANSWERED[1:]], "ids must be unique"),
        ([], "at least one message is required"),
        ([assistant(text("I begin"))], 'first message must use the "user" role'),
        ([{"role": "user", "content": ""}], "must have non-empty content"),
        ([{"role": "user", "content": []}], "must have non-empty content"),
        ([user(text(""))], "text content blocks must be non-empty"),
        ([user(text(" \n"))], "must contain non-whitespace text"),
        ([{"role": "tool", "content": "x"}], "messages.0.role: Input should be"),
        ([{"role": "user"}], "messages.0.content: Field required"),
        ([{**GOAL, "name": "x"}], "messages.0.name: Extra inputs are not permitted"),
        ([user({"type": "tool_call"})], "does not match any of the expected tags"),
        ([user(tool_use("t1"))], "can only be in `assistant` messages"),
        ([GOAL, assistant(result("t1"))], "can only be in `user` messages"),
        ([GOAL, assistant({**tool_use("t1"), "input": "{}"})], "tool_use.input: Input should be a valid dictionary"),
        ([GOAL, assistant(tool_use("call:1"))], "tool_use.id: String should match pattern"),
        ([user({**result("t1"), "content": {"a": 1}})], "tool_result.content: Input should be"),
        (["hello"], "messages.0: Input should be a valid dictionary"),
    ],
)
def test_invalid_conversation_is_refused(messages: Any, words: str) -> None:
    assert words in refusal(*messages)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"max_tokens": -1}, "max_tokens: Input should be an integer"),
        ({"max_tokens": True}, "max_tokens: Input should be an integer"),
        ({"model": ""}, "model: Input should be a valid string"),
        ({"stream": "yes"}, "stream: Input should be a valid boolean"),
        ({"messages": None}, "messages: Field required"),
        ({"request_id": "x"}, "request_id: Extra inputs are not permitted"),
        ({"system": [text("")]}, "system: text content blocks must be non-empty"),
        ({"tools": [{"name": "a b", "input_schema": {"type": "object"}}]}, "tools.0.custom.name"),
        ({"tools": [{"name": "a", "input_schema": {}}]}, "tools.0.custom.input_schema"),
        ({"tools": [{"name": "a", "input_schema": {"type": "object"}}] * 2}, "Tool names must be unique"),
        ({"tool_choice": {"type": "auto"}}, "may only be specified while providing tools"),
        ({"metadata": {"user_id": 7}}, "metadata.user_id: Input should be a valid string"),
        ({"system": [{**text("a"), "cache_control": {"type": "ephemeral"}}] * 5}, "maximum of 4 blocks"),
    ],
)
def test_invalid_request_is_refused(fields: Any, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_create({"model": "sim-hello", "max_tokens": 10, "messages": [GOAL], **fields})
    assert (caught.value.status, words in caught.value.message) == (400, True)


def test_counting_takes_no_max_tokens() -> None:
    assert check_count({"model": "m", "messages": [GOAL]})["model"] == "m"
    with pytest.raises(ApiError, match="max_tokens"):
        check_count({"model": "m", "messages": [GOAL], "max_tokens": 1})
