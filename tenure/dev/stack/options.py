"""What the stack is asked to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tenure.domain.simulation import SIMULATED_MODEL_PREFIX
from tenure.domain.task import DEFAULT_MODEL

REPLICATED: Final = ("gateway", "coordinator", "checkpoint", "tools")
"""The services of which there may be several; workers have an option of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """`environment` adds variables by service ("worker", "worker-2", "tools", "*" …); nothing else is inherited.

    `replicas` is how many there are of a service, one of each where it says nothing: `{"checkpoint": 2}` starts
    `checkpoint` and `checkpoint-2`, and everybody who dials checkpoints is told both.

    `scenarios` is a folder of scenarios for the simulator, beside its own; `scenario_files` are single ones, the first
    for tasks that name no model. `tools_config` names the tool service's further tools.

    Without a DSN, endpoints or a key of your own the embedded Postgres, the embedded etcd and the simulator are used.
    """

    data_dir: Path
    workers: int = 2
    replicas: Mapping[str, int] = field(default_factory=dict)
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
    scenario_files: tuple[Path, ...] = ()
    tools_config: Path | None = None
    log_format: str = "json"
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind, count in self.replicas.items():
            if kind not in REPLICATED or count < 1:
                raise ValueError(f"replicas: {kind}={count}; at least one of {', '.join(REPLICATED)}")

    def names_of(self, kind: str) -> list[str]:
        """What the replicas of a service are called, `tools`, `tools-2`, …; and the workers, `worker-1` and on."""
        if kind == "worker":
            return [f"worker-{number}" for number in range(1, self.workers + 1)]
        return [kind, *(f"{kind}-{number}" for number in range(2, self.replicas.get(kind, 1) + 1))]

    @property
    def default_model(self) -> str:
        """The model of tasks that name none, of the ledger and of the workers alike."""
        if self.model or not self.scenario_files:
            return self.model or DEFAULT_MODEL
        return f"{SIMULATED_MODEL_PREFIX}{self.scenario_files[0].stem}"

    @property
    def model_is_simulated(self) -> bool:
        return not (self.anthropic_api_key or self.anthropic_base_url)
