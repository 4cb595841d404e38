"""The config file's section `http_tools`: tools that are one HTTP request each, to an address of the operator's own."""

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
    MOST_DESCRIPTION_CHARACTERS,
    USUAL_TIMEOUT_SECONDS,
    HeaderValue,
    Section,
    TenantName,
)
from tenure.domain.outbound import parse_url
from tenure.domain.tools import USUAL_OUTPUT_BYTES, EffectClass, ToolDefinition
from tenure.validators import MIN_OUTPUT_BYTES

PLACE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""In the URL, for an argument."""

_OWN_HEADERS: Final = frozenset(
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


def _not_ours(name: str) -> str:
    if name.lower() in _OWN_HEADERS:
        raise ValueError("this header cannot be set here")
    return name


HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$"), AfterValidator(_not_ours)]
ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9](_?[a-zA-Z0-9-]){0,63}$", max_length=64)]
"""No `__`: that is for tools of sources."""


class HttpToolSettings(Section):
    """One tool. `{argument}` in the URL's path or query stands for an argument, which the schema has to require; the
    others are the JSON body, or of GET and DELETE the query. `max_calls`: at once, of each replica of the tool service.
    """

    url: str
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    description: str = Field(min_length=1, max_length=MOST_DESCRIPTION_CHARACTERS)
    input_schema: Mapping[str, Any] = Field(default_factory=lambda: {"type": "object"})
    effect_class: EffectClass = EffectClass.UNSAFE
    timeout_seconds: float = Field(USUAL_TIMEOUT_SECONDS, gt=0, le=LONGEST_TIMEOUT_SECONDS)
    output_limit_bytes: int = Field(USUAL_OUTPUT_BYTES, ge=MIN_OUTPUT_BYTES, le=LARGEST_OUTPUT_BYTES)
    headers: Mapping[HeaderName, HeaderValue] = Field(default_factory=dict)
    send_token: bool = False
    allow_private: bool = True
    ca_file: Path | None = None
    tenants: frozenset[TenantName] | None = None
    max_calls: int = Field(16, ge=1, le=1024)
    connect_seconds: float = Field(5.0, gt=0, le=60)

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
            raise ValueError("arguments belong in its path or its query, not in its host")
        if "{" in PLACE.sub("", url) or "}" in PLACE.sub("", url):
            raise ValueError("a brace that is none of an {argument} is written %7B or %7D")
        return url

    @model_validator(mode="after")
    def _fits(self) -> HttpToolSettings:
        if missing := sorted(set(self.places) - set(self.input_schema.get("required", ()))):
            raise ValueError(f"the URL needs {', '.join(missing)}, which input_schema has to require")
        if self.ca_file is not None and not self.ca_file.is_file():
            raise ValueError(f"there is no file {self.ca_file}")
        return self

    @property
    def places(self) -> list[str]:
        """The arguments that go into the URL."""
        return PLACE.findall(self.url)

    def definition(self, name: str) -> ToolDefinition:
        """As agents see it."""
        return ToolDefinition(
            name=name,
            description=self.description,
            input_schema_json=json.dumps(dict(self.input_schema)),
            effect_class=self.effect_class,
            timeout_seconds=self.timeout_seconds,
            output_limit_bytes=self.output_limit_bytes,
        )


HttpTools = dict[ToolName, HttpToolSettings]
