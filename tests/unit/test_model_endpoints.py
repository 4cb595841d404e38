"""Endpoints of models: prompts and keys leave this machine by TLS only."""

from __future__ import annotations

import pytest

from tenure.model_providers.settings import AnthropicSettings, ModelProviderSettings, OpenAISettings

PROBLEM = (
    "{name}_BASE_URL: others could read the prompts and the key on their way to http://llm.internal:8000/…: "
    "use https://, or set TENURE_ALLOW_INSECURE_MODELS=true"
)


@pytest.mark.parametrize(
    ("url", "allowed", "is_refused"),
    [
        ("http://llm.internal:8000/v1", False, True),
        ("http://llm.internal:8000/v1", True, False),
        ("https://llm.internal:8000/v1", False, False),
        ("http://127.0.0.1:11434/v1", False, False),
    ],
)
def test_an_endpoint_without_tls_needs_the_setting(url: str, allowed: bool, is_refused: bool) -> None:
    for name, groups in (
        ("OPENAI", {"openai": OpenAISettings(base_url=url)}),
        ("ANTHROPIC", {"anthropic": AnthropicSettings(base_url=url)}),
    ):
        settings = ModelProviderSettings(allow_insecure_models=allowed, **groups)
        model = "openai/a" if name == "OPENAI" else "claude"
        assert list(settings.missing(model)) == ([PROBLEM.format(name=name)] if is_refused else [])
