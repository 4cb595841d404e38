"""The worker's model client with one provider, as tests open it."""

from __future__ import annotations

from typing import Any

from tenure.domain.models import ANTHROPIC, OPENAI
from tenure.model_providers.anthropic_models import AnthropicProvider
from tenure.model_providers.client import ModelClient
from tenure.model_providers.openai_models import OpenAIProvider
from tests.support.patience import CALL_SECONDS


def model_client(
    base_url: str, *, timeout_seconds: float = CALL_SECONDS, silence_seconds: float = CALL_SECONDS, **options: Any
) -> ModelClient:
    """The client of a worker with both providers, at the same server. `options` are Anthropic's."""
    anthropic = AnthropicProvider(
        **{"api_key": "sk-test", "base_url": base_url, "silence_seconds": silence_seconds, **options}
    )
    openai = OpenAIProvider(api_key="sk-test", base_url=f"{base_url}/v1", silence_seconds=silence_seconds)
    return ModelClient({ANTHROPIC: anthropic, OPENAI: openai}, timeout_seconds=timeout_seconds)
