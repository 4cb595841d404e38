"""Control functions that call a model: the simulator, by its vendor's library. `trace`: see control_functions.py."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic

from tenure.control import ModelCallAnswer, ModelCallReport, ModelCallRequest, StepFailed, TokenUsage, Work
from tests.support.control_functions import at_gate, trace

INPUT_TOKENS = 400
"""An upper bound of every prompt here."""


def request_of(given: dict[str, Any]) -> ModelCallRequest:
    return ModelCallRequest(
        model=given["model"], input_tokens=INPUT_TOKENS, max_output_tokens=given.get("max_output_tokens", 4096)
    )


def usage_of(usage: Any) -> TokenUsage:
    return TokenUsage(
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_creation_input_tokens or 0,
        usage.cache_read_input_tokens or 0,
    )


def ask(given: dict[str, Any], prompt: str) -> Callable[[ModelCallReport], Awaitable[ModelCallAnswer]]:
    """Returns a function that makes one call: it streams the answer, and retries nothing."""

    async def run(report: ModelCallReport) -> ModelCallAnswer:
        trace(given, f"call-{report.attempt.partition('/')[2]}")
        client = anthropic.AsyncAnthropic(
            api_key="sk-test", base_url=os.environ["MODEL_URL"], max_retries=0, timeout=given.get("timeout", 600)
        )
        async with (
            client,
            client.messages.stream(
                model=given["model"],
                max_tokens=report.max_output_tokens,
                messages=[{"role": "user", "content": prompt}],
                extra_headers={"x-tenure-attempt": report.attempt},
            ) as stream,
        ):
            request_id = stream.response.headers["request-id"]
            async for event in stream:
                if event.type == "message_start":
                    report.on_usage(usage_of(event.message.usage), request_id)
                elif event.type == "text":
                    report.on_text(0, event.text)
            message = await stream.get_final_message()
        text = "".join(block.text for block in message.content if block.type == "text")
        return ModelCallAnswer(
            result={"text": text, "granted": report.max_output_tokens},
            text=text,
            usage=usage_of(message.usage),
            model=message.model,
            stop_reason=message.stop_reason or "",
            request_id=request_id,
        )

    return run


async def conversing(work: Work, given: dict[str, Any]) -> dict[str, Any]:
    """A step, a call, a tool, a call; the results come from the record when the function begins again."""
    await work.step("prepare", trace, given, "prepare")
    first = await work.call_model("first", request_of(given), ask(given, f"{work.goal}: begin"))
    await work.call_tool("append_record_unsafe", {"file": given["file"], "line": first["text"]})
    second = await work.call_model("second", request_of(given), ask(given, f"{first['text']} Go on."))
    if given.get("waits"):
        await work.step("gate", at_gate, given)
    return {"goal": work.goal, "texts": [first["text"], second["text"]], "granted": second["granted"]}


async def catching(work: Work, given: dict[str, Any]) -> dict[str, Any]:
    """Goes on after a call that failed."""
    try:
        await work.call_model("first", request_of(given), ask(given, "begin"))
    except StepFailed as failed:
        failure = failed.failure
        await work.step("after", trace, given, "after")
        return {"error_class": failure.error_class, "retryable": failure.retryable}
    return {}


async def impatient(work: Work, given: dict[str, Any]) -> str:
    """Cancels its own step and its own call, and asks another time."""
    try:
        async with asyncio.timeout(0.1):
            await work.step("sleep", asyncio.sleep, 60)
    except (TimeoutError, StepFailed):
        trace(given, "impatient")
    try:
        async with asyncio.timeout(given["patience"]):
            await work.call_model("slow", request_of(given), ask(given, "begin"))
    except (TimeoutError, StepFailed):
        trace(given, "impatient")
    answer = await work.call_model("fast", request_of(given), ask(given, "again"))
    await work.step("gate", at_gate, given)
    return str(answer["text"])


async def hasty(work: Work, given: dict[str, Any]) -> str:
    """Returns while its call runs."""
    began = asyncio.Event()

    async def run(report: ModelCallReport) -> ModelCallAnswer:
        report.on_usage(TokenUsage(7, 3))
        began.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    calling = asyncio.create_task(work.call_model("slow", request_of(given), run))
    await asyncio.wait({calling, asyncio.create_task(began.wait())}, return_when=asyncio.FIRST_COMPLETED)
    return "done"


class Overloaded(Exception):  # noqa: N818
    status_code = 429
    retry_after_seconds = 61


async def wrong(work: Work, given: dict[str, Any]) -> Any:
    """Calls that no ledger can record."""

    async def run(report: ModelCallReport) -> Any:
        if given["how"] == "raises":
            report.on_usage(TokenUsage(7, 3))
            raise ConnectionResetError("gone")
        if given["how"] == "later":
            raise Overloaded("in a minute")
        if given["how"] == "no answer":
            return "text"
        result = object() if given["how"] == "no JSON" else 1
        tokens = -1 if given["how"] == "usage" else 5
        return ModelCallAnswer(result=result, text="", usage=TokenUsage(10, tokens))

    trace(given, "wrong")
    return await work.call_model("wrong", request_of(given), run)


FUNCTIONS = {"conversing": conversing, "catching": catching, "impatient": impatient, "hasty": hasty, "wrong": wrong}
