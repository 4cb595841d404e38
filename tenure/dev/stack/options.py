"""What the stack is asked to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """`environment` adds variables by service ("worker", "worker-2", "tools", "*" …); nothing else is inherited.

    `scenarios` is a folder of scenarios for the simulator, beside its own.

    Without a DSN, endpoints or a key of your own the embedded Postgres, the embedded etcd and the simulator are used.
    """

    data_dir: Path
    workers: int = 2
    slots: int = 16
    usual_ports: bool = False
    postgres_dsn: str = ""
    postgres_binaries: Path | None = None
    etcd_endpoints: str = ""
    etcd_binary: Path | None = None
    anthropic_api_key: str = ""
    anthropic_base_url: str = ""
    model: str = ""
    model_latency_ms: int = 0
    scenarios: Path | None = None
    log_format: str = "json"
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def model_is_simulated(self) -> bool:
        return not (self.anthropic_api_key or self.anthropic_base_url)
