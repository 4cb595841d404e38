"""Opens the clients of the endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from services.models.endpoints.routing import ModelEndpoint
from services.models.endpoints.settings import EndpointSettings
from tenure.domain.models import ANTHROPIC, OPENAI
from tenure.model_providers.client import ModelClient, ModelProvider
from tenure.model_providers.platforms import API
from tenure.model_providers.settings import NO_KEY, ModelProviderSettings, open_providers
from tenure.runtime.settings import ConfigurationError

_OWN_URLS: Final = {ANTHROPIC: "https://api.anthropic.com", OPENAI: "https://api.openai.com/v1"}
"""The vendors' own endpoints: without a URL the libraries would read one from the environment."""


def open_endpoints(
    endpoints: Sequence[EndpointSettings],
    *,
    timeout_seconds: float,
    silence_seconds: float,
    prompt_caching: bool,
    counts_tokens: bool,
) -> list[ModelEndpoint]:
    """Opens the endpoints of the file. Raises ConfigurationError for what a platform lacks."""
    opened = []
    for settings in endpoints:
        provider = _provider(settings, silence_seconds, prompt_caching=prompt_caching, counts_tokens=counts_tokens)
        opened.append(
            ModelEndpoint(settings, ModelClient({settings.vendor: provider}, timeout_seconds=timeout_seconds))
        )
    return opened


def open_default_endpoints(
    providers: ModelProviderSettings,
    *,
    timeout_seconds: float,
    silence_seconds: float,
    prompt_caching: bool,
    counts_tokens: bool,
) -> list[ModelEndpoint]:
    """Opens one endpoint for each provider whose variables are set, named as the provider."""
    opened = open_providers(
        providers, silence_seconds=silence_seconds, prompt_caching=prompt_caching, counts_tokens=counts_tokens
    )
    return [
        ModelEndpoint(
            EndpointSettings(name=vendor, vendor=vendor, rank=1),
            ModelClient({vendor: provider}, timeout_seconds=timeout_seconds),
        )
        for vendor, provider in opened.items()
    ]


def _provider(
    settings: EndpointSettings, silence_seconds: float, *, prompt_caching: bool, counts_tokens: bool
) -> ModelProvider:
    key, base_url = settings.api_key.reveal() or NO_KEY, settings.base_url or _OWN_URLS.get(settings.vendor)
    if settings.vendor == OPENAI:
        from tenure.model_providers.openai_models import OpenAIProvider

        return OpenAIProvider(
            api_key=key,
            base_url=base_url,
            silence_seconds=silence_seconds,
            streams=settings.stream,
            options_of=settings.options_of,
        )
    from tenure.model_providers.anthropic_models import AnthropicProvider

    try:
        return AnthropicProvider(
            api_key=key,
            base_url=base_url if settings.platform == API else settings.base_url or None,
            silence_seconds=silence_seconds,
            prompt_caching=prompt_caching,
            counts_tokens=counts_tokens,
            platform=settings.platform,
            region=settings.region,
            project=settings.project,
            options_of=settings.options_of,
        )
    except (ValueError, ImportError) as error:
        raise ConfigurationError([f"TENURE_MODELS_ENDPOINTS_FILE: {settings.name}: {error}"]) from error
