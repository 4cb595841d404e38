"""The dialects of the Chat Completions API: what servers demand that others refuse or ignore.

A row is chosen by the host of the endpoint, else by the name of the model, because gateways (LiteLLM, OpenRouter, a
company's own) pass requests on to any of these servers. A server without a row gets the last one.

Sources: api-docs.deepseek.com/guides/thinking_mode, platform.moonshot.ai/docs/guide/use-kimi-k2-thinking-model,
ai.google.dev/gemini-api/docs/thought-signatures, platform.openai.com/docs/guides/reasoning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

NEW_LIMIT: Final = "max_completion_tokens"
OLD_LIMIT: Final = "max_tokens"


@dataclass(frozen=True, slots=True)
class ChatDialect:
    """One row. `hosts`: the ends of host names. `models`: a pattern of model names at other hosts.

    `limit_name`: the member for the limit of output. `thoughts`: the member in which the server wants its thoughts
    back; "": they are not kept. `returns_extra_content`: calls go back with the member `extra_content` that they had.
    """

    name: str
    hosts: tuple[str, ...] = ()
    models: str = r"(?!)"
    limit_name: str = OLD_LIMIT
    thoughts: str = ""
    returns_extra_content: bool = False


OTHER: Final = ChatDialect("other")
DIALECTS: Final = (
    # OpenAI's reasoning models refuse the old name of the limit, wherever they are; older servers ignore the new one
    ChatDialect("openai", (".openai.com", ".azure.com"), limit_name=NEW_LIMIT),
    ChatDialect("openai-models", models=r"(.*/)?(o[1-9]|gpt-5)", limit_name=NEW_LIMIT),
    # these refuse members that they do not know, whatever the model
    ChatDialect("strict", (".groq.com", ".cerebras.ai", ".mistral.ai")),
    # refused without the thoughts of the same turn: "The reasoning_content in the thinking mode must be passed back"
    ChatDialect("deepseek", (".deepseek.com",), r"(.*[/.])?deepseek", thoughts="reasoning_content"),
    ChatDialect("moonshot", (".moonshot.ai", ".moonshot.cn"), r"(.*/)?kimi", thoughts="reasoning_content"),
    # refused without the signature of a call, in extra_content.google.thought_signature
    ChatDialect("gemini", (".googleapis.com",), r"(.*/)?gemini", returns_extra_content=True),
)


def dialect_of(host: str, model: str) -> ChatDialect:
    """Returns the row for a model at a host."""
    for dialect in DIALECTS:
        if f".{host}".endswith(dialect.hosts):
            return dialect
    return next((dialect for dialect in DIALECTS if re.match(dialect.models, model, re.IGNORECASE)), OTHER)
