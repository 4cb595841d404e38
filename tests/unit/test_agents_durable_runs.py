"""What an agent does in a task is recorded, billed and repeatable, or the task fails: never silently something else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import agents
import pydantic_ai
import pytest
from agents import (
    CustomTool,
    GuardrailFunctionOutput,
    HostedMCPTool,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
)
from agents.items import ModelResponse
from agents.models.interface import Model, ModelProvider
from agents.usage import Usage
from pydantic_ai import RunContext
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from services.worker.agents import definitions_of
from tenure.agents import Agent, Effect, EffectUnknown, Worker, durable, function
from tenure.agents.failures import UnfinishedRun
from tenure.agents.openai_agents import durable as durable_openai
from tenure.agents.pydantic_ai.durability import repeated_discovery
from tenure.control import Work
from tenure.control.failures import NotReplayable, TryAgain
from tenure.runtime.settings import ConfigurationError
from tests.support import openai_script as sdk
from tests.support.journal_work import JournalWork
from tests.support.patience import PATIENCE_SECONDS
from tests.support.pydantic_script import Script, call, text_response

UNKNOWN = EffectUnknown("the bank hung up")


class Provider(ModelProvider):
    def __init__(self, model: Model) -> None:
        self.model = model

    def get_model(self, model_name: str | None) -> Model:
        return self.model


async def test_a_run_in_a_function_is_recorded() -> None:
    """By name, by the run's configuration, and of an agent that is not durable."""
    script = sdk.Script(*[sdk.text_message(text) for text in ("One", "Two", "Three")])
    named = agents.Agent(name="named", model="gpt-5")
    durable_openai(named)
    plain = agents.Agent(name="plain")
    by_name, by_model = RunConfig(model_provider=Provider(script)), RunConfig(model=script)

    @function
    async def all_of_them(work: Work) -> list[str]:
        runs = [(named, by_name), (named, by_model), (plain, by_name)]
        return [(await Runner.run(agent, "Hello", run_config=config)).final_output for agent, config in runs]

    work = JournalWork()
    for _ in range(2):
        assert await all_of_them.run(work.begin(), None) == ["One", "Two", "Three"]
    assert (work.kinds, len(script.seen)) == (["model"] * 3, 3)


async def test_tools_of_an_agent_that_a_function_runs_are_recorded() -> None:
    """Of a clone with the effect of the agent that it is a clone of, of any other agent as UNSAFE."""
    ran: list[str] = []

    @function_tool
    def refund() -> str:
        ran.append("refund")
        return "ok"

    def script() -> sdk.Script:
        return sdk.Script([sdk.call("refund")], sdk.text_message("Done."))

    first = agents.Agent(name="first", model=script(), tools=[refund])
    durable_openai(first, effects={"refund": Effect.KEYED})
    other = agents.Agent(name="other", model=script(), tools=[refund])

    @function
    async def both(work: Work) -> None:
        await Runner.run(first.clone(model=first.model), "Refund")
        await Runner.run(other, "Refund")

    work = JournalWork()
    for _ in range(2):
        await both.run(work.begin(), None)
    assert ran == ["refund", "refund"]
    assert [tool.effect for tool in work.tools] == [Effect.KEYED, Effect.UNSAFE]


async def test_an_undeclared_agent_is_recorded_in_a_function() -> None:
    """Also in an inline tool. Of Pydantic AI: those of the SDK have a test above."""
    ran: list[str] = []
    script = Script(call("refund"), text_response("Refunded."))
    plain = pydantic_ai.Agent(FunctionModel(script))

    @plain.tool_plain
    def refund() -> str:
        ran.append("refund")
        return "ok"

    outer = Agent("outer", model=FunctionModel(Script(call("delegate"), text_response("Delegated."))))

    @outer.tool_plain(effect=None)
    async def delegate() -> str:
        return (await plain.run("Refund")).output

    work = JournalWork("Delegate")
    for _ in range(2):
        assert await outer.durable_function.run(work.begin(), None) == "Delegated."
    assert (ran, len(script.seen)) == (["refund"], 2)
    assert work.kinds.count("plain: model") == 2
    assert [tool.effect for tool in work.tools] == [Effect.UNSAFE]


@pytest.mark.parametrize("library", ["pydantic_ai", "openai_agents"])
async def test_an_undeclared_agent_in_a_recorded_tool_is_logged(library: str, caplog: pytest.LogCaptureFixture) -> None:
    of_pydantic = pydantic_ai.Agent(FunctionModel(Script(text_response("Hello."))), name="plain of pydantic_ai")
    of_openai = agents.Agent(name="plain of openai_agents", model=sdk.Script(sdk.text_message("Hello.")))
    outer = Agent("outer", model=FunctionModel(Script(call("delegate"), text_response("Delegated."))))

    @outer.tool_plain(effect=Effect.PURE)
    async def delegate() -> str:
        if library == "pydantic_ai":
            return (await of_pydantic.run("Hello")).output
        return str((await Runner.run(of_openai, "Hello")).final_output)

    durable_openai(agents.Agent(name="other", model=sdk.Script()))
    assert await outer.durable_function.run(JournalWork("Delegate"), None) == "Delegated."
    (warning,) = [record for record in caplog.records if "neither recorded nor billed" in record.message]
    assert (vars(warning)["agent"], vars(warning)["inside"]) == (f"plain of {library}", "the tool delegate")


@pytest.mark.parametrize("run", [Runner.run_streamed, Runner.run_sync], ids=["streamed", "sync"])
async def test_runs_that_cannot_be_recorded_fail_the_task(run: Callable[..., Any]) -> None:
    agent = agents.Agent(name="support", model=sdk.Script(sdk.text_message("Hello.")))

    @function
    async def streams(work: Work) -> str:
        try:
            run(agent, "Hello")
        except NotReplayable:
            return "hidden"
        return "ran"

    with pytest.raises(NotReplayable, match=r"use `await Runner.run"):
        await streams.run(JournalWork(), None)


async def test_a_session_is_read_and_written_once() -> None:
    session = SQLiteSession("chat", ":memory:")
    await session.add_items([{"role": "user", "content": "I am Ada."}])
    script = sdk.Script(sdk.text_message("Hello Ada."))
    agent = agents.Agent(name="support", model=script)

    @function
    async def chat(work: Work) -> str:
        return str((await Runner.run(agent, "Who am I?", session=session)).final_output)

    work = JournalWork()
    assert await chat.run(work.begin(), None) == "Hello Ada."
    items = await session.get_items()
    assert await chat.run(work.begin(), None) == "Hello Ada."
    assert await session.get_items() == items
    assert "I am Ada." in str(script.seen[0])


class Checker(Model):
    """Called by the SDK itself."""

    async def get_response(self, *arguments: Any, **options: Any) -> ModelResponse:
        return ModelResponse(output=sdk.text_message("fine"), usage=Usage(), response_id=None)

    def stream_response(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError


async def test_a_guardrail_runs_beside_the_agent_and_is_not_recorded() -> None:
    checked: list[str] = []

    @agents.input_guardrail
    async def check(_context: Any, _agent: Any, given: Any) -> GuardrailFunctionOutput:
        judge = agents.Agent(name="judge", model=Checker())
        checked.append((await Runner.run(judge, given)).final_output)
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    agent = agents.Agent(name="support", model=sdk.Script(sdk.text_message("Hello.")), input_guardrails=[check])
    work = JournalWork("Hello")
    assert await durable_openai(agent).run(work, None) == "Hello."
    assert (checked, work.kinds) == (["fine"], ["model"])


@pytest.mark.parametrize(
    "tool",
    [
        CustomTool(name="raw", description="", on_invoke_tool=lambda *_: "", format=None),
        HostedMCPTool(tool_config={"type": "mcp", "server_label": "a", "server_url": "https://a.example"}),
    ],
    ids=["custom", "hosted mcp"],
)
def test_a_tool_without_an_approver_is_refused(tool: Any) -> None:
    with pytest.raises(ValueError, match=r"cannot (record|ask for)"):
        durable_openai(agents.Agent(name="support", tools=[tool]))


async def test_a_run_that_ends_in_an_interruption_fails() -> None:
    """Of a tool that slipped past the adapter: the result would be null."""

    @function_tool(needs_approval=True)
    def refund() -> str:
        raise AssertionError("nobody approved it")

    agent = agents.Agent(name="support", model=sdk.Script([sdk.call("refund")]))
    run = durable_openai(agent).run
    late = agents.Agent(name="late", model=sdk.Script([sdk.call("refund")]), tools=[refund])
    durable_openai(late)
    vars(late.tools[0])["needs_approval"] = True

    @function
    async def interrupted(work: Work) -> Any:
        return (await Runner.run(late, "Refund")).final_output

    with pytest.raises(UnfinishedRun, match="refund"):
        await interrupted.run(JournalWork(), None)
    assert run is not None


FAILURES: list[tuple[Exception, str]] = [(UNKNOWN, "IN_DOUBT: the bank hung up"), (KeyError("no order"), "FAILED: ")]


@pytest.mark.parametrize(("raised", "reported"), FAILURES, ids=["unknown", "failed"])
async def test_exception_of_an_openai_tool_is_its_outcome(raised: Exception, reported: str) -> None:
    @function_tool
    def pay() -> str:
        raise raised

    script = sdk.Script([sdk.call("pay")], sdk.text_message("Sorry."))
    work = JournalWork("Pay")
    run = durable_openai(agents.Agent(name="support", model=script, tools=[pay])).run
    for _ in range(2):
        assert await run(work.begin(), None) == "Sorry."
    (seen,) = sdk.sent_to_the_model(script, "pay")
    assert seen.startswith(reported)


async def test_failure_text_of_a_tool_reaches_the_model() -> None:
    def explain(_context: Any, error: Exception) -> str:
        return f"Ask Ada about {error}"

    @function_tool(failure_error_function=explain)
    def pay() -> str:
        raise ValueError("order 7")

    script = sdk.Script([sdk.call("pay")], sdk.text_message("Sorry."))
    agent = agents.Agent(name="support", model=script, tools=[pay])
    assert await durable_openai(agent).run(JournalWork("Pay"), None) == "Sorry."
    assert sdk.sent_to_the_model(script, "pay") == ["FAILED: Ask Ada about order 7"]


async def test_an_unknown_effect_of_an_inline_tool_fails_the_task() -> None:
    @function_tool
    def pay() -> str:
        raise UNKNOWN

    script = sdk.Script([sdk.call("pay")], sdk.text_message("Paid."))
    agent = agents.Agent(name="support", model=script, tools=[pay])
    with pytest.raises(NotReplayable, match="hung up"):
        await durable_openai(agent, effects={"pay": None}).run(JournalWork("Pay"), None)
    inline = Agent("inline", model=FunctionModel(Script(call("pay"), text_response("Paid."))))

    @inline.tool_plain(name="pay", effect=None)
    def pay_inline() -> str:
        raise UNKNOWN

    with pytest.raises(EffectUnknown):
        await inline.durable_function.run(JournalWork("Pay"), None)


@dataclass
class Cart:
    items: list[str] = field(default_factory=list)
    seen: Callable[[], None] | None = None


Run = Callable[[Any, Any], Awaitable[Any]]


def pydantic_cart(effect: Effect | None) -> Run:
    agent = Agent(
        "cart",
        model=FunctionModel(Script(call("add"), text_response("ok"), text_response("ok"))),
        deps_type=Cart,
        deps=cart,
    )

    @agent.tool(effect=effect)
    def add(ctx: RunContext[Cart]) -> str:
        ctx.deps.items.append("a")
        return "added"

    return agent.durable_function.run


def openai_cart(effect: Effect | None) -> Run:
    @function_tool
    def add(context: agents.RunContextWrapper[Cart]) -> str:
        context.context.items.append("a")
        return "added"

    script = sdk.Script([sdk.call("add")], sdk.text_message("ok"), sdk.text_message("ok"))
    agent = agents.Agent[Cart](name="cart", model=script, tools=[add])
    return durable_openai(agent, effects={"add": effect}, context=cart).run


def cart(_given: Any) -> Cart:
    return Cart(seen=lambda: None)


@pytest.mark.parametrize("made", [pydantic_cart, openai_cart])
async def test_a_recorded_change_of_shared_state_fails_the_task(made: Callable[[Effect | None], Run]) -> None:
    """Its worker's successor would not have the change. An inline tool runs again."""
    work = JournalWork("Add")
    for _ in range(2):
        with pytest.raises(NotReplayable, match="changed items of the value"):
            await made(Effect.PURE)(work.begin(), None)
    inline = JournalWork("Add")
    run = made(None)
    for _ in range(2):
        assert await run(inline.begin(), None) == "ok"


async def test_an_mcp_server_that_does_not_start_is_tried_again() -> None:
    from pydantic_ai.durable_exec import ToolsetGetToolsId

    with (
        pytest.raises(TryAgain, match="RuntimeError: closed"),
        repeated_discovery(ToolsetGetToolsId("mcp", toolset_id="a")),
    ):
        raise RuntimeError("closed")
    for error in (FileNotFoundError("uvx"), NotReplayable("x")):
        with pytest.raises(type(error)), repeated_discovery(ToolsetGetToolsId("mcp", toolset_id="a")):
            raise error
    with pytest.raises(RuntimeError), repeated_discovery(ToolsetGetToolsId("dynamic", toolset_id="a")):
        raise RuntimeError("a bug")


def test_a_toolset_without_an_id_is_refused_at_the_start() -> None:
    agent = pydantic_ai.Agent(FunctionModel(Script()), name="support", toolsets=[FunctionToolset()])
    with pytest.raises(ConfigurationError, match="agent support has a FunctionToolset without an id"):
        definitions_of(Worker([durable(agent)]).functions, "")


async def test_a_task_s_model_calls_leave_the_user_s_client_as_it_is() -> None:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    client = AsyncOpenAI(api_key="x", base_url="http://127.0.0.1:9", max_retries=2)
    model = OpenAIChatModel("gpt-5", provider=OpenAIProvider(openai_client=client))
    run = durable(pydantic_ai.Agent(model, name="support", model_settings={"max_retries": 7})).run
    work = JournalWork("Hello")
    with pytest.raises(pydantic_ai.exceptions.ModelConnectionError):
        await run(work, None)
    assert client.max_retries == 2


THREADS = """
import asyncio, os, signal, threading, time
from tenure.runtime.process import run

async def main(process):
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)
    os.kill(os.getpid(), signal.SIGTERM)
    await process.run_until_stopped()

raise SystemExit(run(main))
"""


def test_a_thread_that_hangs_does_not_keep_a_stopped_process() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", THREADS], timeout=PATIENCE_SECONDS, check=False, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr


async def test_calls_that_only_a_caller_could_answer_fail_the_task() -> None:
    agent = pydantic_ai.Agent(
        FunctionModel(Script(call("look"))), name="support", output_type=[str, pydantic_ai.DeferredToolRequests]
    )

    @agent.tool_plain
    def look() -> str:
        raise pydantic_ai.CallDeferred

    with pytest.raises(UnfinishedRun, match="look"):
        await durable(agent).run(JournalWork("Look"), None)
