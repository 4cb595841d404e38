"""What every task's loop works with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.worker.interrupts import TrustGate
from services.worker.ledger_client import LedgerClient
from services.worker.model import ModelClient
from services.worker.tools_client import ToolsClient
from services.worker.usage_reports import UsageReports
from tenure.control import Function


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """For tasks that leave it to the worker. `context_window_tokens` 0: as large as the model's is.

    `count_tokens_above`: the provider is asked to count when more of the input than this is a guess.
    """

    model: str
    max_output_tokens: int
    context_window_tokens: int = 0
    count_tokens_above: int = 0


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Shared by all tasks of the process."""

    ledger: LedgerClient
    tools: ToolsClient
    model: ModelClient
    trust: TrustGate
    defaults: ModelDefaults
    reports: UsageReports
    functions: Mapping[str, Function] = field(default_factory=dict)

    @property
    def in_reach(self) -> bool:
        """Whether a task that is taken now could be worked on. A worker cut off must not take what others could do."""
        return self.ledger.in_reach and self.tools.in_reach
