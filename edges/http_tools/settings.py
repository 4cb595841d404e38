"""Defines the section `http_tools` of the config file: tools that are one HTTP request each, to the operator's URL."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from services.tools.schemas import Schema
from services.tools.sources import (
    LARGEST_OUTPUT_BYTES,
    LONGEST_TIMEOUT_SECONDS,
    MAX_DESCRIPTION_CHARACTERS,
    USUAL_TIMEOUT_SECONDS,
    CompensationSettings,
    EffectKeySettings,
    HeaderValue,
    Section,
    SettleSettings,
    TenantName,
    require_tls,
)
from tenure.domain.outbound import parse_url
from tenure.domain.tools import USUAL_OUTPUT_BYTES, EffectClass, ToolDefinition
from tenure.validators.common import MIN_OUTPUT_BYTES

PLACE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""An `{argument}` in the URL."""

_RESERVED_HEADERS: Final = frozenset(
    (
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "host",
        "idempotency-key",
        "traceparent",
        "transfer-encoding",
        "upgrade",
        "x-fencing-epoch",
        "x-fencing-token",
    )
)


def _not_reserved(name: str) -> str:
    if name.lower() in _RESERVED_HEADERS:
        raise ValueError("this header is reserved: the tool service sets it")
    return name


HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$"), AfterValidator(_not_reserved)]
ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9](_?[a-zA-Z0-9-]){0,63}$", max_length=64)]
"""A tool name has no `__`, which separates a source from its tool names."""


class HttpToolSettings(Section):
    """The settings of one HTTP tool.

    url: its path and its query may contain `{argument}`; input_schema must require that argument. The other arguments
    become the JSON body, or the query of a GET or DELETE.
    allow_insecure: accept an http:// URL of another machine.
    max_calls: how many calls each replica of the tool service runs at once.
    compensation: how its effect is undone.
    """

    url: str
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    description: str = Field(min_length=1, max_length=MAX_DESCRIPTION_CHARACTERS)
    input_schema: Mapping[str, Any] = Field(default_factory=lambda: {"type": "object"})
    effect_class: EffectClass = EffectClass.UNSAFE
    effect_key: EffectKeySettings | None = None
    settle: SettleSettings | None = None
    timeout_seconds: float = Field(USUAL_TIMEOUT_SECONDS, gt=0, le=LONGEST_TIMEOUT_SECONDS)
    output_limit_bytes: int = Field(USUAL_OUTPUT_BYTES, ge=MIN_OUTPUT_BYTES, le=LARGEST_OUTPUT_BYTES)
    headers: Mapping[HeaderName, HeaderValue] = Field(default_factory=dict)
    send_token: bool = False
    allow_private: bool = True
    allow_insecure: bool = False
    ca_file: Path | None = None
    tenants: frozenset[TenantName] | None = None
    max_calls: int = Field(16, ge=1, le=1024)
    connect_seconds: float = Field(5.0, gt=0, le=60)
    compensation: CompensationSettings | None = None

    @field_validator("input_schema")
    @classmethod
    def _is_schema(cls, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        Schema(json.dumps(dict(schema)))
        return schema

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        parse_url(PLACE.sub("x", url))
        authority = re.split(r"[/?#]", url.partition("//")[2], maxsplit=1)[0]
        if "{" in authority:
            raise ValueError("the host must not contain arguments: move them to the path or the query")
        if "{" in PLACE.sub("", url) or "}" in PLACE.sub("", url):
            raise ValueError("write a brace that does not belong to an {argument} as %7B or %7D")
        return url

    @model_validator(mode="after")
    def _fits(self) -> HttpToolSettings:
        if missing := sorted(set(self.places) - set(self.input_schema.get("required", ()))):
            raise ValueError(f"the URL needs {', '.join(missing)}: list them under required in input_schema")
        if self.ca_file is not None and not self.ca_file.is_file():
            raise ValueError(f"ca_file: {self.ca_file} does not exist")
        require_tls(self.url, allow_insecure=self.allow_insecure)
        if self.settle is not None and (problem := self.settle.problem(self.effect_class)):
            raise ValueError(f"settle: {problem}")
        return self

    @property
    def places(self) -> list[str]:
        """The arguments that go into the URL."""
        return PLACE.findall(self.url)

    def definition(self, name: str) -> ToolDefinition:
        """Returns the tool definition that agents see."""
        return ToolDefinition(
            name=name,
            description=self.description,
            input_schema_json=json.dumps(dict(self.input_schema)),
            effect_class=self.effect_class,
            timeout_seconds=self.timeout_seconds,
            output_limit_bytes=self.output_limit_bytes,
            compensation=None if self.compensation is None else self.compensation.compensation,
            effect_key=None if self.effect_key is None else self.effect_key.key,
            settlement=None if self.settle is None else self.settle.settlement,
        )


HttpTools = dict[ToolName, HttpToolSettings]
