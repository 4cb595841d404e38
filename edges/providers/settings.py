"""Defines the section `providers` of the config file: the addresses of providers, and the rules for their tools."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field, model_validator

from services.tools.sources import (
    LARGEST_OUTPUT_BYTES,
    LONGEST_TIMEOUT_SECONDS,
    CompensationSettings,
    EffectKeys,
    HeaderValue,
    Rules,
    Section,
    SettleSettings,
    SourceName,
    TenantName,
    require_tls,
)
from tenure.domain.tools import EffectClass
from tenure.runtime.rpc.client import target_of
from tenure.validators.common import MIN_OUTPUT_BYTES

_RESERVED_KEYS: Final = frozenset({"authorization", "idempotency-key", "x-fencing-epoch", "traceparent"})
_RESERVED_PREFIXES: Final = ("grpc-", "x-tenure-")


def _not_reserved(key: str) -> str:
    if key in _RESERVED_KEYS or key.startswith(_RESERVED_PREFIXES) or key.endswith("-bin"):
        raise ValueError("this metadata key is reserved: the tool service or gRPC sets it")
    return key


MetadataKey = Annotated[str, Field(pattern=r"^[a-z0-9_.-]{1,64}$"), AfterValidator(_not_reserved)]


class TlsSettings(Section):
    """PEM files for TLS.

    Without `ca_file` the system's authorities are trusted. The others are a client certificate.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    @model_validator(mode="after")
    def _fits(self) -> TlsSettings:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("set both cert_file and key_file, or neither")
        for file in (self.ca_file, self.cert_file, self.key_file):
            if file is not None and not file.is_file():
                raise ValueError(f"the file {file} does not exist")
        return self


class ProviderSettings(Section):
    """The settings of one provider.

    tls: without it the connection is plaintext, which to another machine needs `allow_insecure`.
    timeout_seconds, output_limit_bytes, effects: override what the provider declares.
    compensations: how the effects of its tools are undone, by tool.
    effect_keys: effect keys by tool.
    settle: how calls of unknown end are settled, by tool.
    max_calls: how many calls each replica of the tool service runs at once.
    """

    address: str
    tls: TlsSettings | None = None
    allow_insecure: bool = False
    bearer_token: HeaderValue | None = None
    headers: Mapping[MetadataKey, HeaderValue] = Field(default_factory=dict)
    send_token: bool = True
    timeout_seconds: float | None = Field(None, gt=0, le=LONGEST_TIMEOUT_SECONDS)
    output_limit_bytes: int | None = Field(None, ge=MIN_OUTPUT_BYTES, le=LARGEST_OUTPUT_BYTES)
    allow: frozenset[str] | None = None
    effects: Mapping[str, EffectClass] = Field(default_factory=dict)
    compensations: Mapping[str, CompensationSettings] = Field(default_factory=dict)
    effect_keys: EffectKeys = Field(default_factory=dict)
    settle: Mapping[str, SettleSettings] = Field(default_factory=dict)
    tenants: frozenset[TenantName] | None = None
    max_calls: int = Field(32, ge=1, le=1024)
    connect_seconds: float = Field(5.0, gt=0, le=60)
    refresh_seconds: float = Field(60.0, ge=1, le=3600)

    @model_validator(mode="after")
    def _fits(self) -> ProviderSettings:
        target_of(self.address.split(","))
        if ":" not in self.address:
            raise ValueError(f"address: {self.address!r} is not host:port")
        if self.tls is None:
            for address in self.address.split(","):
                require_tls(f"http://{address.strip()}", allow_insecure=self.allow_insecure)
        return self

    @property
    def rules(self) -> Rules:
        """The operator's rules for the provider's tools."""
        return Rules(
            self.allow,
            self.effects,
            self.timeout_seconds,
            self.output_limit_bytes,
            self.compensations,
            self.effect_keys,
            self.settle,
        )

    @property
    def metadata(self) -> list[tuple[str, str]]:
        """The metadata of every RPC to the provider."""
        pairs = [(name, value.get_secret_value()) for name, value in self.headers.items()]
        if self.bearer_token is not None:
            pairs.append(("authorization", f"Bearer {self.bearer_token.get_secret_value()}"))
        return pairs

    @property
    def secrets(self) -> list[str]:
        """The setting values that must not appear in the error texts of this source."""
        return [value for _, value in self.metadata]


Providers = dict[SourceName, ProviderSettings]
