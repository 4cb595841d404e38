"""Functions whose steps, model calls and tools return more than the ledger takes. The input: a file to note runs in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tenure.control import (
    EffectClass,
    ModelCallAnswer,
    ModelCallReport,
    ModelCallRequest,
    OwnTool,
    OwnToolContext,
    ResultLost,
    StepFailed,
    TokenUsage,
    Work,
)

SIZE: Final = 3 * 1024 * 1024
"""Of each result: three parts of a request."""


def text(name: str, size: int = SIZE) -> str:
    return f"{name}: " + "é" * ((size - len(name) - 2) // 2)


def noted(trace: str, name: str) -> str:
    with Path(trace).open("a") as file:
        file.write(f"{name}\n")
    return text(name)


async def large_step(work: Work, given: dict[str, Any]) -> list[Any]:
    whole = await work.step("whole", noted, given["trace"], "whole")
    after = await work.step("after", lambda: len(whole))
    return [after, whole[:5]]


async def large_group(work: Work, given: dict[str, Any]) -> list[Any]:
    results = await work.gather(
        ("a", noted, given["trace"], "a"), ("b", noted, given["trace"], "b"), ("c", lambda: "c")
    )
    return [[len(each.encode()), each[:1]] for each in results]


async def large_answer(work: Work, given: dict[str, Any]) -> list[Any]:
    async def run(report: ModelCallReport) -> ModelCallAnswer:
        return ModelCallAnswer(result={"text": noted(given["trace"], "answer")}, text="yes", usage=TokenUsage(7, 3))

    request = ModelCallRequest(model="claude-sonnet-4-5", input_tokens=10, max_output_tokens=10)
    answer = await work.call_model("ask", request, run)
    return [len(answer["text"].encode()), answer["text"][:6]]


async def fetch(context: OwnToolContext, arguments: Mapping[str, Any]) -> str:
    return noted(arguments["trace"], f"tool {context.idempotency_key.rpartition('/')[2]}")


FETCH = OwnTool(
    name="fetch_all",
    description="Fetches everything.",
    input_schema={"type": "object", "properties": {"trace": {"type": "string"}}},
    effect=EffectClass.KEYED,
    run=fetch,
)


async def large_tools(work: Work, given: dict[str, Any]) -> list[Any]:
    outcomes = await work.call_own_tools([(FETCH, given), (FETCH, given)])
    await work.step("after", lambda: None)
    return [[len(each.content.encode()), each.content[:8], each.truncated] for each in outcomes]


async def lost(work: Work, given: dict[str, Any]) -> str:
    """Handles the loss of its result."""
    try:
        await work.step("whole", noted, given["trace"], "whole")
    except ResultLost as error:
        await work.step("after", lambda: None)
        return f"lost: {error}"
    await work.step("after", lambda: None)
    return "there"


async def too_large(work: Work, given: dict[str, Any]) -> str:
    """Beyond the bound of a result."""
    try:
        await work.step("whole", text, "whole", 17 * 1024 * 1024)
    except StepFailed as error:
        return error.failure.error_class
    return "there"


FUNCTIONS = {
    "large_step": large_step,
    "large_group": large_group,
    "large_answer": large_answer,
    "large_tools": large_tools,
    "lost": lost,
    "too_large": too_large,
}
