"""The settings of the export of traces. The variables of OpenTelemetry say where, Tenure's own say what."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tenure.domain.outbound import is_clear_text, origin_only
from tenure.runtime.settings import setting
from tenure.runtime.telemetry import DISABLED, ENDPOINT, TRACES_ENDPOINT, endpoint, is_plain

PREFIX: Final = "TENURE_CHECKPOINT_TRACES_"

Redact = Callable[[str, str], str]
"""Returns what may be exported of a text. Called with the name of the attribute and its text."""


@dataclass(frozen=True, kw_only=True)
class TraceSettings:
    """TENURE_CHECKPOINT_TRACES_…"""

    all_endpoint: str = setting("the collector of all signals, OTLP over gRPC", default="", variable=ENDPOINT)
    traces_endpoint: str = setting("the collector of traces", default="", variable=TRACES_ENDPOINT)
    disabled: str = setting("true: nothing is exported", default="", variable=DISABLED)
    content: bool = setting("export prompts, answers, arguments and results with traces", default=False)
    allow_insecure: bool = setting("send content to another machine without TLS: others can read it", default=False)
    redact: str = setting(
        "module:function that gets the name and text of each content, and returns the text", default=""
    )

    @property
    def endpoint(self) -> str:
        """The collector, or "" if no traces are exported."""
        values = {ENDPOINT: self.all_endpoint, TRACES_ENDPOINT: self.traces_endpoint, DISABLED: self.disabled}
        return endpoint(values, TRACES_ENDPOINT)

    def problems(self) -> Iterator[str]:
        """Yields violated relations between the settings."""
        # Whatever the scheme is, or if there is none: only https:// is TLS.
        is_exposed = is_plain(self.endpoint) and is_clear_text(f"http://{self.endpoint.rpartition('://')[2]}")
        if self.content and is_exposed and not self.allow_insecure:
            yield (
                f"{PREFIX}CONTENT: others could read prompts and results on their way to {origin_only(self.endpoint)}: "
                f"use https://, or set {PREFIX}ALLOW_INSECURE=true"
            )
        if self.redact and not self.content:
            yield f"{PREFIX}REDACT needs {PREFIX}CONTENT=true: without it no content is exported"
        elif self.redact:
            try:
                self.redact_function()
            except (ImportError, AttributeError, TypeError, ValueError) as error:
                yield f"{PREFIX}REDACT is no module:function that can be imported: {error}"

    def redact_function(self) -> Redact | None:
        """Imports the function. Raises ImportError, AttributeError, TypeError or ValueError."""
        if not self.redact:
            return None
        module, separator, name = self.redact.partition(":")
        if not (module and separator and name):
            raise ValueError("write it as module:function")
        function: Redact = getattr(importlib.import_module(module), name)
        if not callable(function):
            raise TypeError(f"{self.redact} cannot be called")
        return function
