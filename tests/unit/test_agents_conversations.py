"""Agents of both libraries hold conversations: users' messages reach the model in order, in each execution the same."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import agents
import pydantic_ai
import pytest
from agents import RunConfig, function_tool
from pydantic_ai.messages import BinaryContent, ModelMessage, ModelResponse, TextPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from tenure.agents import Effect, durable
from tenure.agents.functions import DurableFunction
from tenure.agents.openai_agents import durable as durable_openai
from tenure.control import ResultLost
from tenure.domain.control import MESSAGES
from tenure.domain.entries import UserMessage
from tenure.domain.images import MAX_SHOWN, Image, SubmittedFile
from tenure.domain.texts import kept_as
from tests.support import openai_script as sdk
from tests.support.journal_work import JournalWork
from tests.support.pydantic_script import Script, call, text_response

NOTE = "note: noted"


@dataclass
class Talk:
    """An agent that calls the tool `note`, and answers. `during`: runs in the tool. `seen`: what each request has."""

    run: DurableFunction
    seen: Callable[[], list[list[str]]]


def pydantic_talk(during: Callable[[], None], *answers: str) -> Talk:
    script, heard = Script(call("note"), *map(text_response, answers)), list[list[ModelMessage]]()

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        heard.append(list(messages))
        return script(messages, info)

    agent = pydantic_ai.Agent(FunctionModel(answer), name="talker")

    @agent.tool_plain
    def note() -> str:
        during()
        return "noted"

    def line(part: Any) -> str:
        if isinstance(part, ToolReturnPart):
            return f"{part.tool_name}: {part.content}"
        parts = [part.content] if isinstance(part.content, str) else part.content
        return "|".join(each.data.decode() if isinstance(each, BinaryContent) else each for each in parts)

    def lines(messages: list[ModelMessage]) -> list[str]:
        shown = (UserPromptPart, TextPart, ToolReturnPart)
        return [line(part) for message in messages for part in message.parts if isinstance(part, shown)]

    return Talk(durable(agent, effects={"note": Effect.PURE}), lambda: [lines(each) for each in heard])


def openai_talk(during: Callable[[], None], *answers: str) -> Talk:
    script = sdk.Script([sdk.call("note")], *map(sdk.text_message, answers))

    @function_tool
    def note() -> str:
        during()
        return "noted"

    agent = agents.Agent(name="talker", model=script, tools=[note])

    def line(item: Any) -> str:
        if "output" in item:
            return f"note: {item['output']}"
        content = item["content"]
        return content if isinstance(content, str) else "|".join(map(text_of, content))

    def text_of(part: Any) -> str:
        return part["text"] if "text" in part else b64decode(part["image_url"].partition("base64,")[2]).decode()

    def lines(items: Any) -> list[str]:
        given = [{"content": items}] if isinstance(items, str) else items
        return [line(item) for item in given if "arguments" not in item]

    return Talk(durable_openai(agent, effects={"note": Effect.PURE}), lambda: [lines(each) for each in script.seen])


TALKS = pytest.mark.parametrize("talk", [pydantic_talk, openai_talk], ids=["pydantic_ai", "openai_agents"])
MakeTalk = Callable[..., Talk]


@TALKS
async def test_a_message_after_the_answer_begins_another_turn(talk: MakeTalk) -> None:
    """As in a fork: the first turn is from the record."""
    agent = talk(lambda: None, "Noted.", "Twice.")
    work = JournalWork("Note this")
    assert await agent.run.run(work.begin(), None) == "Noted."
    work.said.append("How often?")
    for _ in range(2):
        assert await agent.run.run(work.begin(), None) == "Twice."
    assert agent.seen() == [
        ["Note this"],
        ["Note this", NOTE],
        ["Note this", NOTE, "Noted.", "How often?"],
    ]
    assert work.kinds[-2] == MESSAGES


@TALKS
async def test_the_next_request_has_a_message(talk: MakeTalk) -> None:
    work = JournalWork("Note this")
    agent = talk(lambda: work.said.extend(["Wait!", "No, go on."]), "Noted.", "Good bye.")
    assert await agent.run.run(work.begin(), None) == "Noted."
    work.said.append("Thanks")
    for _ in range(2):
        assert await agent.run.run(work.begin(), None) == "Good bye."
    heard = ["Note this", NOTE, "Wait!\n\nNo, go on."]
    assert agent.seen() == [["Note this"], heard, [*heard, "Noted.", "Thanks"]]


@TALKS
async def test_the_first_request_has_a_message(talk: MakeTalk) -> None:
    """As in a fork of a task that was cancelled early."""
    agent = talk(lambda: None, "Noted.")
    work = JournalWork("Note this", said=["And hurry"])
    for _ in range(2):
        assert await agent.run.run(work.begin(), None) == "Noted."
    assert agent.seen()[0] == ["Note this", "And hurry"]


@TALKS
async def test_an_interrupted_request_is_made_again_with_the_message(talk: MakeTalk) -> None:
    """And with its image. The history has both after the answer; in each execution they are the same."""
    work = JournalWork("Note this", contents=CONTENTS)
    agent = talk(lambda: None, "Noted.", "Any time.")
    work.interrupts = {2: UserMessage("In French", files=(SECOND,)), 3: UserMessage("No, in English")}
    assert await agent.run.run(work.begin(), None) == "Noted."
    work.said.append("Thanks")
    for _ in range(2):
        assert await agent.run.run(work.begin(), None) == "Any time."
    french = f"In French{FILES}messages/1/second.png (8 bytes, image/png, 2 x 2 pixels)"
    redirected = ["Note this", NOTE, french, "<second>", "No, in English"]
    said = [[line for lines in each for line in lines.split("|")] for each in agent.seen()]
    assert said == [["Note this"], redirected, [*redirected, "Noted.", "Thanks"]]
    model = work.kinds[0]
    assert work.kinds == [model, "tool note", model, MESSAGES, model, MESSAGES, model, MESSAGES, model]


async def test_a_message_interrupts_no_agent_that_is_a_tool() -> None:
    inner = agents.Agent(name="inner", model=sdk.Script(sdk.text_message("Hello.")))
    outer_script = sdk.Script([sdk.call("ask", '{"input": "Say hello"}')], sdk.text_message("Hello to all."))
    outer = agents.Agent(name="outer", model=outer_script, tools=[inner.as_tool("ask", "Asks.")])
    work = JournalWork("Ask", interrupts={2: UserMessage("To all!"), 3: UserMessage("And to me")})
    assert await durable_openai(outer).run(work.begin(), None) == "Hello to all."
    assert [request.interruptible for request in work.requests] == [True, False, True, True]
    assert "And to me" in str(outer_script.seen[-1])


async def test_an_agent_that_is_a_tool_reads_no_messages() -> None:
    work = JournalWork("Ask")
    inner_script = sdk.Script(sdk.text_message("Hello."))
    inner = agents.Agent(name="inner", model=inner_script)
    outer_script = sdk.Script([sdk.call("ask", '{"input": "Say hello"}')], sdk.text_message("Hello to all."))
    outer = agents.Agent(name="outer", model=outer_script, tools=[inner.as_tool("ask", "Asks.")])
    plain = inner_script.get_response

    async def said_meanwhile(*arguments: Any, **options: Any) -> Any:
        work.said.append("To all!")
        return await plain(*arguments, **options)

    inner_script.get_response = said_meanwhile  # type: ignore[method-assign]
    work.said.append("Ask nicely")
    run = durable_openai(outer)
    for _ in range(2):
        assert await run.run(work.begin(), None) == "Hello to all."
    assert "nicely" not in str(inner_script.seen)
    assert str(outer_script.seen[1]).count("To all!") == 1
    assert str(outer_script.seen[1]).count("Ask nicely") == 1


async def test_the_next_turn_is_of_the_agent_that_answered() -> None:
    """After a handoff, with a message that came before it and the filter of the run's own configuration."""
    second_script = sdk.Script(sdk.text_message("Refunded."), sdk.text_message("Any time."))
    second = agents.Agent(name="second", model=second_script)
    first_script = sdk.Script([sdk.call("transfer_to_second")])
    first = agents.Agent(name="first", model=first_script, handoffs=[second])
    filtered: list[int] = []

    def count(data: Any) -> Any:
        filtered.append(len(data.model_data.input))
        return data.model_data

    run = durable_openai(first, run_config=RunConfig(call_model_input_filter=count))
    work = JournalWork("Refund", said=["Please"])
    assert await run.run(work.begin(), None) == "Refunded."
    work.said.append("Thanks")
    for _ in range(2):
        assert await run.run(work.begin(), None) == "Any time."
    contents = [item.get("content") for item in second_script.seen[1] if item.get("role") == "user"]
    assert contents == ["Refund", "Please", "Thanks"]
    assert filtered[0] == 2


def image(path: str, content: bytes) -> SubmittedFile:
    kept = kept_as(content)
    return SubmittedFile(path, kept.digest, kept.size_bytes, Image(kept, "image/png", 2, 2))


CONTENTS = {"photo.png": b"<photo>", "messages/1/second.png": b"<second>", "messages/2/third.png": b"<third>"}
PHOTO, SECOND, THIRD = (image(path, content) for path, content in CONTENTS.items())
FACTS = SubmittedFile("facts.txt", kept_as(b"true").digest, 4)
FILES = "\n\nFiles in the workspace, which came with this message:\n- "
NAMED = f"Note this{FILES}photo.png (7 bytes, image/png, 2 x 2 pixels)\n- facts.txt (4 bytes)"


@TALKS
async def test_each_image_is_in_the_request_after_its_text(talk: MakeTalk) -> None:
    """Of the submit, of a message to the running agent, and of one after its answer; in each execution the same."""
    work = JournalWork("Note this", files=(PHOTO, FACTS), contents=CONTENTS)
    agent = talk(lambda: work.said.append(UserMessage("See", files=(SECOND,))), "Seen.", "Twice.")
    assert await agent.run.run(work.begin(), None) == "Seen."
    work.said.append(UserMessage("Again", files=(THIRD,)))
    for _ in range(2):
        assert await agent.run.run(work.begin(), None) == "Twice."
    second = f"See{FILES}messages/1/second.png (8 bytes, image/png, 2 x 2 pixels)"
    third = f"Again{FILES}messages/2/third.png (7 bytes, image/png, 2 x 2 pixels)"
    first = [NAMED, "<photo>"]
    heard = [*first, NOTE, second, "<second>"]
    said = [[line for lines in each for line in lines.split("|")] for each in agent.seen()]
    assert said == [first, heard, [*heard, "Seen.", third, "<third>"]]


@TALKS
async def test_an_image_that_cannot_be_shown_says_why(talk: MakeTalk) -> None:
    """It is gone, or one too many. A model that sees none reads the names only."""
    many = tuple(image(f"{index}.png", b"i") for index in range(MAX_SHOWN + 1))
    contents = {each.path: b"i" for each in many}
    lost = await seen(talk, JournalWork("Note this", files=(PHOTO,)))
    assert lost[1] == f"[This image is not shown: {ResultLost('photo.png', 'it is not there any more')}.]"
    shown = await seen(talk, JournalWork("Note this", files=many, contents=contents))
    assert shown[1:-1] == ["i"] * MAX_SHOWN
    assert "a conversation shows 20 images" in shown[-1]
    assert len(await seen(talk, JournalWork("Note this", files=(PHOTO,), contents=CONTENTS, is_blind=True))) == 1


async def seen(talk: MakeTalk, work: JournalWork) -> list[str]:
    """What the first request has."""
    agent = talk(lambda: None, "Noted.")
    assert await agent.run.run(work.begin(), None) == "Noted."
    return [line for lines in agent.seen()[0] for line in lines.split("|")]
