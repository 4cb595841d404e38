"""The file that lists the endpoints of the providers, in TOML; without one, each provider has the one of its variables.

[[endpoint]]
name = "anthropic"
vendor = "anthropic"
api_key_file = "/run/secrets/anthropic_key"

[[endpoint]]
name = "bedrock-frankfurt"
vendor = "anthropic"
platform = "bedrock"
region = "eu-central-1"
models = { "claude-haiku-4-5" = "eu.anthropic.claude-haiku-4-5-20251001-v1:0" }

[[endpoint]]
name = "own"
vendor = "openai"
base_url = "http://10.0.0.7:8000/v1"
context_window_tokens = 32768
models."qwen3" = { name = "Qwen/Qwen3-32B", max_output_tokens = 4096, extra_body = { top_k = 20 } }
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, get_type_hints

from tenure.domain.models import ANTHROPIC, ATTEMPT_HEADER, OPENAI
from tenure.domain.outbound import is_clear_text, origin_only
from tenure.model_providers.dialects import NAMES as DIALECT_NAMES
from tenure.model_providers.endpoint import ModelOptions
from tenure.model_providers.platforms import API, BEDROCK, PLATFORMS, VERTEX, missing_extra
from tenure.model_providers.proxies import problem_of_proxy
from tenure.model_providers.settings import problem_of_key, problem_of_url
from tenure.runtime.settings import ConfigurationError, Secret
from tenure.validators.common import MAX_WINDOW_TOKENS, MIN_WINDOW_TOKENS

MAX_ENDPOINTS: Final = 32
VENDORS: Final = (ANTHROPIC, OPENAI)
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}\Z")
_TABLE: Final = "endpoint"
NAME: Final = "name"
_OPTIONS: Final = tuple(option.name for option in fields(ModelOptions))
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}\Z")
_OWN_HEADERS: Final = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "accept-encoding", "connection", ATTEMPT_HEADER}
)
_OWN_MEMBERS: Final = frozenset(
    {"model", "messages", "system", "tools", "stream", "stream_options", "max_tokens", "max_completion_tokens"}
)


@dataclass(frozen=True, kw_only=True)
class EndpointSettings:
    """One endpoint. `rank`: those of a lower one are preferred.

    `stream`: False for a server that cannot stream its answers. `models`: its names of the models that it has, or
    tables with the name and options of this model; empty: it has all models of its vendor, under their own names. The
    options are those of ModelOptions.
    """

    name: str
    vendor: str
    rank: int
    platform: str = API
    base_url: str = ""
    api_key_file: str = ""
    stream: bool = True
    region: str = ""
    project: str = ""
    models: Mapping[str, str | Mapping[str, Any]] = field(default_factory=dict)
    context_window_tokens: int = 0
    max_output_tokens: int = 0
    silence_seconds: float = 0.0
    dialect: str = ""
    extra_headers: Mapping[str, Any] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    api_key: Secret = field(default=Secret(""))

    def model(self, name: str) -> str | None:
        """Returns the endpoint's name of a model, or None if it does not have the model."""
        if not self.models:
            return name
        known = self.models.get(name)
        return known if known is None or isinstance(known, str) else str(known.get(NAME, name))

    def options_of(self, own_name: str) -> ModelOptions:
        """Returns the options of a model by the endpoint's own name: those of the endpoint, and its own."""
        return self._options.get(own_name) or self._common

    @cached_property
    def _common(self) -> ModelOptions:
        return ModelOptions(**{name: getattr(self, name) for name in _OPTIONS})

    @cached_property
    def _options(self) -> dict[str, ModelOptions]:
        tables = {self.model(name) or name: table for name, table in self.models.items() if not isinstance(table, str)}
        return {name: _with(self._common, table) for name, table in tables.items()}

    def problems(self, *, allows_insecure: bool) -> Iterator[str]:
        """Yields what is wrong with the settings."""
        if not _NAME.match(self.name):
            yield "name: must be 1 to 63 of a-z, 0-9, '.', '_' and '-'"
        if self.vendor not in VENDORS:
            yield f"vendor: must be one of {', '.join(VENDORS)}"
        if self.platform not in PLATFORMS or (self.platform != API and self.vendor != ANTHROPIC):
            yield f"platform: must be one of {', '.join(PLATFORMS)}, and api for other vendors than anthropic"
        elif missing := missing_extra(self.platform):
            yield f"platform: {missing}"
        if not self.stream and self.vendor != OPENAI:
            yield "stream: only endpoints of the vendor openai can do without"
        if self.region and self.platform not in {BEDROCK, VERTEX}:
            yield "region: only the platforms bedrock and vertex have one"
        if self.project and self.platform != VERTEX:
            yield "project: only the platform vertex has one"
        yield from _problems_of_options({name: getattr(self, name) for name in _OPTIONS}, self.vendor)
        for name, table in self.models.items():
            if not isinstance(table, str):
                yield from (f"models.{name}: {problem}" for problem in _problems_of_table(table, self.vendor))
        yield from self._problems_of_access(allows_insecure=allows_insecure)

    def _problems_of_access(self, *, allows_insecure: bool) -> Iterator[str]:
        if self.platform == API and not (self.api_key_file or self.base_url):
            yield "api_key_file is missing (set base_url instead for an endpoint that needs no key)"
        if self.api_key_file and not self.api_key.reveal():
            yield f"api_key_file: {self.api_key_file} is empty"
        elif problem := problem_of_key(self.api_key.reveal()):
            yield f"api_key_file: {problem}"
        if problem := problem_of_url(self.base_url) or problem_of_proxy(self.base_url):
            yield f"base_url: {problem}"
        elif is_clear_text(self.base_url) and not allows_insecure:
            yield (
                f"base_url: others could read the prompts and the key on their way to {origin_only(self.base_url)}: "
                "use https://, or set TENURE_ALLOW_INSECURE_MODELS=true"
            )


def _with(common: ModelOptions, table: Mapping[str, Any]) -> ModelOptions:
    """Returns the options of a model: its own go before those of the endpoint, member by member of the tables."""
    own = {name: table[name] for name in _OPTIONS if name in table}
    for name in ("extra_headers", "extra_body"):
        own[name] = {**getattr(common, name), **own.get(name, {})}
    return replace(common, **own)


def _problems_of_table(table: Mapping[str, Any], vendor: str) -> Iterator[str]:
    kinds = {NAME: str, **{name: _KINDS[name] for name in _OPTIONS}}
    unknown = sorted(table.keys() - kinds.keys())
    wrong = [
        f"{name}: {_rule(kinds[name])}"
        for name in sorted(table.keys() - set(unknown))
        if not _fits(table[name], kinds[name])
    ]
    yield from (f"{name}: unknown; there are {', '.join(kinds)}" for name in unknown)
    yield from wrong
    if not wrong:
        yield from _problems_of_options(table, vendor)


def _problems_of_options(options: Mapping[str, Any], vendor: str) -> Iterator[str]:
    window = options.get("context_window_tokens", 0)
    if window and not MIN_WINDOW_TOKENS <= window <= MAX_WINDOW_TOKENS:
        yield f"context_window_tokens: must be {MIN_WINDOW_TOKENS} to {MAX_WINDOW_TOKENS}"
    if options.get("max_output_tokens", 0) < 0:
        yield "max_output_tokens: must not be negative"
    if options.get("silence_seconds", 0) < 0:
        yield "silence_seconds: must not be negative"
    if (dialect := options.get("dialect", "")) and (dialect not in DIALECT_NAMES or vendor != OPENAI):
        yield f"dialect: must be one of {', '.join(DIALECT_NAMES)}, for the vendor {OPENAI}"
    for name, value in options.get("extra_headers", {}).items():
        if (
            not _HEADER.match(name)
            or name.lower() in _OWN_HEADERS
            or not isinstance(value, str)
            or not value.isprintable()
        ):
            yield f"extra_headers: {name!r}: must be a header that Tenure does not set, with a printable text"
    if own := sorted(options.get("extra_body", {}).keys() & _OWN_MEMBERS):
        yield f"extra_body: must not have {own[0]}, which each call sets"


def read_endpoints(path: Path, *, allows_insecure: bool) -> tuple[EndpointSettings, ...]:
    """Reads the file and the files of the keys. Raises ConfigurationError with all problems."""
    where = f"TENURE_MODELS_ENDPOINTS_FILE: {path}"
    try:
        value = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError([f"{where}: {error}"]) from error
    tables = value.get(_TABLE)
    if set(value) != {_TABLE} or not isinstance(tables, list) or not 0 < len(tables) <= MAX_ENDPOINTS:
        raise ConfigurationError([f"{where}: must have 1 to {MAX_ENDPOINTS} tables [[{_TABLE}]] and nothing else"])
    problems: list[str] = []
    endpoints = [_endpoint(index, table, problems) for index, table in enumerate(tables, 1)]
    read = [endpoint for endpoint in endpoints if endpoint is not None]
    for endpoint in read:
        problems += [f"{endpoint.name}: {problem}" for problem in endpoint.problems(allows_insecure=allows_insecure)]
    names = Counter(endpoint.name for endpoint in read)
    problems += [f"{name}: {count} endpoints have this name" for name, count in names.items() if count > 1]
    if problems:
        raise ConfigurationError([f"{where}: {problem}" for problem in problems])
    return tuple(read)


def _endpoint(index: int, table: Any, problems: list[str]) -> EndpointSettings | None:
    """Reads one table. Adds its problems to the list."""
    label = f"{_TABLE} {index}"
    if not isinstance(table, dict):
        problems.append(f"{label}: must be a table")
        return None
    known = {name: kind for name, kind in _KINDS.items() if name != "api_key"}
    wrong = [f"{label}: {name}: unknown" for name in table.keys() - known]
    wrong += [f"{label}: {name} is missing" for name in ("name", "vendor") if name not in table]
    wrong += [
        f"{label}: {name}: {_rule(known[name])}" for name in table.keys() & known if not _fits(table[name], known[name])
    ]
    problems += sorted(wrong)
    if wrong:
        return None
    try:
        key = Path(table["api_key_file"]).read_text(encoding="utf-8").strip() if table.get("api_key_file") else ""
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{label}: api_key_file: {error}")
        return None
    return EndpointSettings(**{"rank": index, **table}, api_key=Secret(key))


_KINDS: Final = {known.name: get_type_hints(EndpointSettings)[known.name] for known in fields(EndpointSettings)}


def _fits(value: Any, kind: Any) -> bool:
    if kind in {str, int, bool}:
        return type(value) is kind
    if kind is float:
        return type(value) in {int, float}
    if kind == Mapping[str, Any]:
        return isinstance(value, dict)
    return (
        isinstance(value, dict)
        and bool(value)
        and all(name and isinstance(name, str | dict) for name in value.values())
    )


def _rule(kind: Any) -> str:
    rules = {
        str: "must be a string",
        int: "must be a whole number",
        float: "must be a number",
        bool: "must be true or false",
        Mapping[str, Any]: "must be a table",
    }
    return rules.get(kind, "must be a table of names of models, or of tables with options")
