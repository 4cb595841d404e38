"""Builds the schemas of model answers before workers are forked, which the providers' libraries put off until a call.

Each worker of an agent would build them at its first answer: up to half a second of processor time.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final, get_args

_OF_AGENTS: Final = ("pydantic_ai", "agents")
"""Libraries of agents, which read answers with the classes of the providers' libraries."""
_ANSWERS: Final = {
    "anthropic.types.beta": ("BetaMessage", "BetaRawMessageStreamEvent"),
    "openai.types.chat": ("ChatCompletion", "ChatCompletionChunk"),
    "openai.types.responses": ("Response", "ResponseStreamEvent"),
}
"""The answers and the events of their streams by module."""


def build_answer_schemas() -> None:
    """Builds those of the libraries that this process has imported, if it runs agents."""
    if not any(name in sys.modules for name in _OF_AGENTS):
        return
    for module, names in _ANSWERS.items():
        if module.partition(".")[0] in sys.modules:
            for name in names:
                _build(getattr(import_module(module), name, None))


def _build(answer: Any) -> None:
    """Builds the schema of a class, or those of the members of a union; nothing of a release that has no such name."""
    for member in get_args(answer):
        _build(member)
    if isinstance(answer, type) and hasattr(answer, "model_rebuild"):
        answer.model_rebuild(raise_errors=False)
