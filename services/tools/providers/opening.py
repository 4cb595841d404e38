"""All providers of the config file, connected or on their way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from services.tools.providers.provider import Provider
from services.tools.providers.settings import ProviderSettings
from services.tools.registry import Registry
from tenure.runtime.duties import Duties

if TYPE_CHECKING:
    from tenure.runtime.process import Process

SILENCE_SECONDS: Final = 60.0
"""Of one question to a provider, which has a deadline of seconds."""


async def open_providers(process: Process, settings: Mapping[str, ProviderSettings], registry: Registry) -> None:
    """Returns once all are reached or have had their time: tasks that begin right away should see their tools."""
    providers = [await process.open(Provider(name, one, registry)) for name, one in settings.items()]
    duties = await process.open(Duties())
    for name, provider in zip(settings, providers, strict=True):
        duties.start(f"watch provider {name}", provider.watch, silence_seconds=SILENCE_SECONDS)
    await asyncio.gather(*(provider.reached() for provider in providers))
