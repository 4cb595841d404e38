"""Agents without Tenure: the model provider's library in a loop, with nothing recorded and no tool run.

Each conversation grows as a task's does, with the same model, tools and answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, cast

import anthropic

from tenure.domain.tools import ToolDefinition
from tenure.model_providers.http import open_http_client

GOAL: Final = "measure"
MAX_TOKENS: Final = 8192
SILENCE_SECONDS: Final = 60.0
NO_FILES: Final = "(no files)"


@dataclass(frozen=True, slots=True)
class BareAgents:
    """Conversations with the model at `url`. `at_once`: how many at a time."""

    url: str
    model: str
    tools: Sequence[ToolDefinition]
    at_once: int

    async def steps_per_second(self, seconds: float) -> float:
        """Begins conversations for this many seconds, and ends them all. Returns the model calls per second."""
        offered = [
            {"name": tool.name, "description": tool.description, "input_schema": json.loads(tool.input_schema_json)}
            for tool in self.tools
        ]
        began = perf_counter()

        async def one_after_another(client: anthropic.AsyncAnthropic) -> int:
            steps = 0
            while not steps or perf_counter() - began < seconds:
                steps += await self._run_agent(client, offered)
            return steps

        async with open_http_client(SILENCE_SECONDS) as http_client:
            client = anthropic.AsyncAnthropic(api_key="none", base_url=self.url, max_retries=0, http_client=http_client)
            counts = await asyncio.gather(*(one_after_another(client) for _ in range(self.at_once)))
        return sum(counts) / (perf_counter() - began)

    async def _run_agent(self, client: anthropic.AsyncAnthropic, offered: list[dict[str, Any]]) -> int:
        """Runs one conversation to its final answer. Returns how many calls it took."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": GOAL}]
        calls = 0
        while True:
            content = await self._call(client, offered, messages)
            calls += 1
            messages.append({"role": "assistant", "content": content})
            results = [
                {"type": "tool_result", "tool_use_id": block["id"], "content": NO_FILES}
                for block in content
                if block["type"] == "tool_use"
            ]
            if not results:
                return calls
            messages.append({"role": "user", "content": results})

    async def _call(
        self, client: anthropic.AsyncAnthropic, offered: list[dict[str, Any]], messages: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Returns the blocks of one streamed answer."""
        blocks: list[dict[str, Any]] = []
        pieces: list[list[str]] = []
        stream = await client.messages.create(
            model=self.model,
            max_tokens=MAX_TOKENS,
            messages=cast("Any", messages),
            tools=cast("Any", offered),
            stream=True,
        )
        async with stream:
            async for event in stream:
                if event.type == "content_block_start":
                    blocks.append(event.content_block.model_dump(include={"type", "id", "name"}))
                    pieces.append([])
                elif event.type == "content_block_delta":
                    delta = event.delta
                    pieces[event.index].append(
                        delta.text if delta.type == "text_delta" else getattr(delta, "partial_json", "")
                    )
        for block, parts in zip(blocks, pieces, strict=True):
            text = "".join(parts)
            block.update({"text": text} if block["type"] == "text" else {"input": json.loads(text or "{}")})
        return blocks
