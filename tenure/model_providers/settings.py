"""The settings of the model providers, and how a process opens those that are set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from tenure.domain.models import ANTHROPIC, OPENAI, vendor_of
from tenure.domain.outbound import is_clear_text, origin_only
from tenure.model_providers.client import ModelProvider
from tenure.model_providers.endpoint import ModelOptions
from tenure.model_providers.platforms import API, PLATFORMS, missing_extra
from tenure.model_providers.proxies import problem_of_proxy
from tenure.runtime.fast_start import imports_kept
from tenure.runtime.settings import ConfigurationError, Secret, group, setting

NO_KEY: Final = "none"  # an endpoint of the user's own may need no key, but the libraries insist on sending one


def problem_of_key(key: str) -> str | None:
    """Returns why a key cannot be sent, without the key: every call would fail, with a message that may quote it."""
    if key.isascii() and key.isprintable() and " " not in key:
        return None
    return "the key has a space, a line break or another character that cannot be sent"


def problem_of_url(url: str) -> str | None:
    """Returns what is wrong with the URL of an endpoint; an empty one is the vendor's own."""
    try:
        parts = urlsplit(url)
        fits = not url or (parts.scheme in {"http", "https"} and parts.hostname is not None and parts.port != 0)
    except ValueError:  # of the port, or of an IPv6 address
        fits = False
    return None if fits else "must be a URL that begins with https:// or http:// and names a host"


@dataclass(frozen=True, kw_only=True)
class AnthropicSettings:
    """Anthropic's own environment variables."""

    api_key: Secret = setting("the API key of Anthropic", default=Secret(""), variable="ANTHROPIC_API_KEY")
    base_url: str = setting("an endpoint instead of Anthropic's own", default="", variable="ANTHROPIC_BASE_URL")


@dataclass(frozen=True, kw_only=True)
class OpenAISettings:
    """OpenAI's own environment variables. Models named `openai/…` need one of them."""

    api_key: Secret = setting("the API key of OpenAI", default=Secret(""), variable="OPENAI_API_KEY")
    base_url: str = setting(
        "an OpenAI-compatible endpoint instead of OpenAI's own", default="", variable="OPENAI_BASE_URL"
    )
    streams: bool = setting(
        "the endpoint streams its answers; false for a server that cannot",
        default=True,
        variable="TENURE_OPENAI_STREAM",
    )
    context_window_tokens: int = setting(
        "the input and output of a call to the endpoint in tokens; 0: learned from its refusals",
        default=0,
        minimum=0,
        variable="TENURE_OPENAI_CONTEXT_WINDOW_TOKENS",
    )
    max_output_tokens: int = setting(
        "the most output of a call to the endpoint in tokens; 0: learned from its refusals",
        default=0,
        minimum=0,
        variable="TENURE_OPENAI_MAX_OUTPUT_TOKENS",
    )
    silence_seconds: float = setting(
        "the longest silence in a call to the endpoint; 0: as the process states it, or by the host of the endpoint",
        default=0.0,
        minimum=0.0,
        variable="TENURE_OPENAI_SILENCE_SECONDS",
    )

    @property
    def options(self) -> ModelOptions:
        """What these variables state of each model of the endpoint."""
        return ModelOptions(
            context_window_tokens=self.context_window_tokens,
            max_output_tokens=self.max_output_tokens,
            silence_seconds=self.silence_seconds,
        )


@dataclass(frozen=True, kw_only=True)
class ModelProviderSettings:
    """The model providers of a worker or of the model runner."""

    anthropic_platform: str = setting(
        "where Anthropic's models run: api, bedrock or vertex",
        default=API,
        choices=PLATFORMS,
        variable="TENURE_ANTHROPIC_PLATFORM",
    )
    allow_insecure_models: bool = setting(
        "accept http:// endpoints of other machines: others can read the prompts and the API key",
        default=False,
        variable="TENURE_ALLOW_INSECURE_MODELS",
    )
    anthropic: AnthropicSettings = group(AnthropicSettings)
    openai: OpenAISettings = group(OpenAISettings)

    def missing(self, default_model: str) -> Iterator[str]:
        """Yields what is missing for the default model and for the providers that are set, and unsafe endpoints."""
        vendor, _ = vendor_of(default_model)
        if not self.is_set(vendor):
            name = vendor.upper()
            yield f"{name}_API_KEY is missing (set {name}_BASE_URL instead for an endpoint that needs no key)"
        yield from self.problems_of_endpoints()

    def problems_of_endpoints(self) -> Iterator[str]:
        """Yields what the platform lacks, and endpoints that are not safe."""
        if missing := missing_extra(self.anthropic_platform):
            yield f"TENURE_ANTHROPIC_PLATFORM: {missing}"
        for name, vendor in (("ANTHROPIC", self.anthropic), ("OPENAI", self.openai)):
            url = vendor.base_url
            if self.is_set(name.lower()) and (problem := problem_of_proxy(url)):
                yield f"{name}_BASE_URL: {problem}"
            if problem := problem_of_key(vendor.api_key.reveal()):
                yield f"{name}_API_KEY: {problem}"
            if problem := problem_of_url(url):
                yield f"{name}_BASE_URL: {problem}"
            elif is_clear_text(url) and not self.allow_insecure_models:
                yield (
                    f"{name}_BASE_URL: others could read the prompts and the key on their way to {origin_only(url)}: "
                    "use https://, or set TENURE_ALLOW_INSECURE_MODELS=true"
                )

    def is_set(self, vendor: str) -> bool:
        """Whether the process has this provider."""
        settings = self.openai if vendor == OPENAI else self.anthropic
        has_own_login = vendor == ANTHROPIC and self.anthropic_platform != API
        return bool(settings.api_key.reveal() or settings.base_url or has_own_login)


def open_providers(
    settings: ModelProviderSettings, *, silence_seconds: float, prompt_caching: bool, counts_tokens: bool
) -> dict[str, ModelProvider]:
    """Returns the providers that are set, by vendor. Raises ConfigurationError for what a platform lacks.

    Only here are the vendors' libraries imported: it takes longer than all else of a worker's start, and a worker with
    a model runner does not need them.
    """
    providers: dict[str, ModelProvider] = {}
    if settings.is_set(ANTHROPIC):
        with imports_kept():
            from tenure.model_providers.anthropic_models import AnthropicProvider

        try:
            providers[ANTHROPIC] = AnthropicProvider(
                api_key=settings.anthropic.api_key.reveal() or NO_KEY,
                base_url=settings.anthropic.base_url or None,
                silence_seconds=silence_seconds,
                prompt_caching=prompt_caching,
                counts_tokens=counts_tokens,
                platform=settings.anthropic_platform,
            )
        except (ValueError, ImportError) as error:
            problem = f"TENURE_ANTHROPIC_PLATFORM={settings.anthropic_platform}: {error}"
            raise ConfigurationError([problem]) from error
    if settings.is_set(OPENAI):
        from tenure.model_providers.openai_models import OpenAIProvider

        providers[OPENAI] = OpenAIProvider(
            api_key=settings.openai.api_key.reveal() or NO_KEY,
            base_url=settings.openai.base_url or None,
            silence_seconds=silence_seconds,
            streams=settings.openai.streams,
            options_of=lambda _model: settings.openai.options,
        )
    return providers
