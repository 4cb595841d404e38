"""The settings of the export of traces. The variables of OpenTelemetry say where, Tenure's own say what."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Final

from tenure.domain.outbound import is_clear_text, origin_only
from tenure.runtime.observability.otlp_target import HTTP, PROTOCOLS, HttpTarget, http_target, protocol_of, variable_of
from tenure.runtime.observability.otlp_target import PREFIX as OTLP_PREFIX
from tenure.runtime.observability.telemetry import DISABLED, ENDPOINT, TRACES_ENDPOINT, endpoint, is_plain
from tenure.runtime.settings import Secret, group, setting

PREFIX: Final = "TENURE_CHECKPOINT_TRACES_"

Redact = Callable[[str, str], str]
"""Returns what may be exported of a text. Called with the name of the attribute and its text."""


@dataclass(frozen=True, kw_only=True)
class OtlpSettings:
    """OTEL_EXPORTER_OTLP_…: how traces are sent. Each variable of traces counts more than that of all signals."""

    protocol: str = setting("of all signals: grpc or http/protobuf; empty: grpc", default="")
    traces_protocol: str = setting("of traces", default="")
    headers: Secret = setting("name=value,name=value, sent with each request", default=Secret(""))
    traces_headers: Secret = setting("of traces", default=Secret(""))
    compression: str = setting("gzip or none; empty: none", default="")
    traces_compression: str = setting("of traces", default="")
    certificate: str = setting("file of the authority of the collector's certificate", default="")
    traces_certificate: str = setting("of traces", default="")
    client_certificate: str = setting("file of the certificate that is shown to the collector", default="")
    traces_client_certificate: str = setting("of traces", default="")
    client_key: str = setting("file of its key", default="")
    traces_client_key: str = setting("of traces", default="")

    def variables(self) -> dict[str, str]:
        """Returns them as an environment has them, with secrets."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            f"{OTLP_PREFIX}{name.upper()}": value.reveal() if isinstance(value, Secret) else str(value)
            for name, value in values.items()
        }


@dataclass(frozen=True, kw_only=True)
class TraceSettings:
    """TENURE_CHECKPOINT_TRACES_…"""

    all_endpoint: str = setting("the collector of all signals, by OTLP", default="", variable=ENDPOINT)
    traces_endpoint: str = setting("the collector of traces", default="", variable=TRACES_ENDPOINT)
    disabled: str = setting("true: nothing is exported", default="", variable=DISABLED)
    content: bool = setting("export prompts, answers, arguments and results with traces", default=False)
    allow_insecure: bool = setting("send content to another machine without TLS: others can read it", default=False)
    redact: str = setting(
        "module:function that gets the name and text of each content, and returns the text", default=""
    )

    otlp: OtlpSettings = group(OtlpSettings, OTLP_PREFIX)

    @property
    def protocol(self) -> str:
        """The protocol by which traces are sent."""
        return protocol_of(self.otlp.variables(), "TRACES")

    def http_target(self) -> HttpTarget:
        """Returns where traces are sent over HTTP. Raises ValueError for a malformed variable."""
        return http_target(
            {**self.otlp.variables(), ENDPOINT: self.all_endpoint, TRACES_ENDPOINT: self.traces_endpoint}, "TRACES"
        )

    def header_text(self) -> str:
        """Returns the headers as the variable has them."""
        return variable_of(self.otlp.variables(), "TRACES", "HEADERS")

    @property
    def endpoint(self) -> str:
        """The collector, or "" if no traces are exported."""
        values = {ENDPOINT: self.all_endpoint, TRACES_ENDPOINT: self.traces_endpoint, DISABLED: self.disabled}
        return endpoint(values, TRACES_ENDPOINT)

    def problems(self) -> Iterator[str]:
        """Yields violated relations between the settings."""
        yield from self._protocol_problems()
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
                yield f"{PREFIX}REDACT does not name a module:function that can be imported: {error}"

    def _protocol_problems(self) -> Iterator[str]:
        if self.endpoint and self.protocol not in PROTOCOLS:
            yield f"{OTLP_PREFIX}PROTOCOL: {self.protocol!r} is neither {' nor '.join(PROTOCOLS)}"
        elif self.endpoint and self.protocol == HTTP:
            try:
                self.http_target()
            except ValueError as error:
                yield str(error)

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
