"""The clients and defaults that every task's loop uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.worker.interrupts import TrustGate
from services.worker.ledger_client import LedgerClient
from services.worker.models import Models
from services.worker.own_calls import OwnRuns
from services.worker.tools_client import ToolsClient
from tenure.control import Function
from tenure.runtime.usage_reports import UsageReports


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """The model settings of tasks that set none. `context_window_tokens` 0 means the whole context window of the model.

    The worker asks the provider to count a prompt when it would have to estimate more than `count_tokens_above` tokens.
    `sees_images`: patterns of models, see tenure/domain/images.py. `functions_use_runner`: model calls of functions and
    of agents in Python go to the model runners, too. `replay_model`: the model of a replay of code, "" outside of one.
    """

    model: str
    max_output_tokens: int
    context_window_tokens: int = 0
    count_tokens_above: int = 0
    sees_images: tuple[str, ...] = ()
    functions_use_runner: bool = True
    replay_model: str = ""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The dependencies that all tasks of the process share. `digests`: of the definitions of the functions."""

    ledger: LedgerClient
    tools: ToolsClient
    models: Models
    trust: TrustGate
    defaults: ModelDefaults
    reports: UsageReports
    own_runs: OwnRuns
    functions: Mapping[str, Function] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def in_reach(self) -> bool:
        """Whether the ledger, the tools and the model runners are reachable.

        A worker that is cut off from one of them must not take tasks that other workers could run.
        """
        return self.ledger.in_reach and self.tools.in_reach and self.models.in_reach
