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
models = { "claude-sonnet-4-5" = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0" }
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, get_type_hints

from tenure.domain.models import ANTHROPIC, OPENAI
from tenure.domain.outbound import is_clear_text, origin_only
from tenure.model_providers.platforms import API, BEDROCK, PLATFORMS, VERTEX, missing_extra
from tenure.model_providers.proxies import problem_of_proxy
from tenure.model_providers.settings import problem_of_key, problem_of_url
from tenure.runtime.settings import ConfigurationError, Secret

MAX_ENDPOINTS: Final = 32
VENDORS: Final = (ANTHROPIC, OPENAI)
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}\Z")
_TABLE: Final = "endpoint"


@dataclass(frozen=True, kw_only=True)
class EndpointSettings:
    """One endpoint. `rank`: those of a lower one are preferred.

    `stream`: False for a server that cannot stream its answers. `models`: its names of the models that it has; empty:
    it has all models of its vendor, under their own names.
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
    models: Mapping[str, str] = field(default_factory=dict)
    api_key: Secret = field(default=Secret(""))

    def model(self, name: str) -> str | None:
        """Returns the endpoint's name of a model, or None if it does not have the model."""
        return self.models.get(name) if self.models else name

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
    kinds = {known.name: get_type_hints(EndpointSettings)[known.name] for known in fields(EndpointSettings)}
    known = {name: kind for name, kind in kinds.items() if name != "api_key"}
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


def _fits(value: Any, kind: Any) -> bool:
    if kind in {str, int, bool}:
        return type(value) is kind
    return isinstance(value, dict) and bool(value) and all(isinstance(name, str) and name for name in value.values())


def _rule(kind: Any) -> str:
    rules = {str: "must be a string", int: "must be a whole number", bool: "must be true or false"}
    return rules.get(kind, "must be a table of names of models")
