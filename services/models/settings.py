"""The settings of the model runner, from its environment."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.models.store import MAX_CALLS
from tenure.domain.outbound import problem_of
from tenure.model_providers.settings import ModelProviderSettings
from tenure.runtime.rpc.call_limiter import WorkerLimitSettings
from tenure.runtime.security.process_security import peer_problems
from tenure.runtime.service import CommonSettings, metrics_setting
from tenure.runtime.settings import Address, Secret, group, setting
from tenure.runtime.store.postgres import dsn_problems

ANY_INTERFACE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  compared with the setting, never bound to


@dataclass(frozen=True, kw_only=True)
class ModelsSettings:
    """The settings TENURE_MODELS_…"""

    listen: Address = setting("where to serve", default=Address("127.0.0.1:8477"))
    metrics_listen: Address | None = metrics_setting()
    advertise: str = setting("host:port for the other replicas (default: the bound address)", default="")
    postgres_dsn: Secret = setting("DSN of the database; the service uses the schema `models`")
    verifying_keys_file: Path = setting("public keys of the coordinators' fencing tokens")
    checkpoint_address: tuple[Address, ...] = setting(
        "the checkpoint services' addresses", default=(Address("127.0.0.1:8472"),)
    )
    migrate: str = setting(
        "check: refuse to start when migrations are missing; auto: run them", default="check", choices=("check", "auto")
    )
    service_role: str = setting("database role that the command migrate gives the rights of the service", default="")
    allow_unsafe_postgres: bool = setting("accept a Postgres that may lose acknowledged commits", default=False)
    max_calls: int = setting("model calls that are made at once", default=2048, minimum=1, maximum=MAX_CALLS)
    max_prompt_megabytes: int = setting(
        "prompts and passed-on responses of the calls that are made at once; they take several times as much in memory",
        default=512,
        minimum=64,
        maximum=65_536,
    )
    timeout_seconds: float = setting("the timeout of a call whose request has none", default=600.0, minimum=0.1)
    silence_seconds: float = setting(
        "the longest silence in a call; 0: by the host of the endpoint, see docs/models.md", default=0.0, minimum=0.0
    )
    prompt_caching: bool = setting("use the provider's prompt caching", default=True)
    count_tokens: bool = setting("let the provider count long prompts, if it can", default=True)
    runner_ttl_seconds: float = setting(
        "how long the other replicas may miss renewals of this process before it counts as dead",
        default=15.0,
        minimum=2.0,
    )
    report_seconds: float = setting(
        "how long an end waits for a worker before its usage is reported to the ledger", default=60.0, minimum=0.1
    )
    drain_seconds: float = setting(
        "how long calls may go on after the process is asked to stop; then they are lost", default=300.0, minimum=0.0
    )
    retention_days: int = setting(
        "how long a task's newest call and its fence are kept after the last change", default=7, minimum=1, maximum=3650
    )
    endpoints_file: Path | None = setting(
        "TOML of the providers' endpoints, see docs/model_runner.md; without it each provider has one", default=None
    )
    rate_limit_wait_seconds: float = setting(
        "how long a call waits for the rate limit of an endpoint before it looks for another one",
        default=10.0,
        minimum=0.1,
    )
    limit: WorkerLimitSettings = group(WorkerLimitSettings, "TENURE_MODELS_LIMIT_")
    providers: ModelProviderSettings = group(ModelProviderSettings)
    common: CommonSettings = group(CommonSettings)

    def advertised(self, port: int) -> str:
        """Returns where other replicas reach this one; bound to all interfaces, it has its host name."""
        host = socket.gethostname() if self.listen.host in ANY_INTERFACE else self.listen.rpartition(":")[0]
        return self.advertise or f"{host}:{port}"

    def problems(self) -> Iterator[str]:
        """Yields violated relations between settings."""
        if self.advertise and (problem := problem_of(self.advertise)):
            yield f"TENURE_MODELS_ADVERTISE: {self.advertise!r}: {problem}"
        yield from self.providers.problems_of_endpoints()
        yield from dsn_problems(self.common, "TENURE_MODELS_POSTGRES_DSN", self.postgres_dsn)
        yield from peer_problems(self.common, {"TENURE_MODELS_CHECKPOINT_ADDRESS": self.checkpoint_address})
