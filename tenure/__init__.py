"""Tenure: durable tasks for AI agents. The public Python API.

    from tenure import Client, SyncClient

docs/client.md is the guide. A name is imported at its first use, so that `import tenure.domain` brings no gRPC along.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tenure.domain.budget import TokenUsage
    from tenure.domain.errors import (
        AlreadyExists,
        BudgetExhausted,
        InvalidRequest,
        LimitReached,
        NotFound,
        OutOfRange,
        PermissionDenied,
        Refused,
        TenureError,
        TryLater,
        Unauthenticated,
        Unavailable,
        WrongState,
    )
    from tenure.domain.outputs import TaskOutput
    from tenure.domain.retry import RetryPolicy
    from tenure.domain.states import TaskState
    from tenure.domain.task import (
        BudgetPolicy,
        InDoubtPolicy,
        InputFile,
        LeaseLostPolicy,
        NoProgressPolicy,
        Priority,
        Source,
        SourceKind,
        SubAgentLimits,
        TaskPolicy,
    )
    from tenure.domain.timeouts import PhaseTimeout, TimeoutAction, Timeouts
    from tenure.domain.tools import EffectClass, OutcomeStatus, ToolDefinition
    from tenure.domain.waits import WaitKind
    from tenure.runtime.rpc.channels import UsedBeforeFork
    from tenure.runtime.security.tls import ClientTls
    from tenure.sdk.agent_info import AgentDetails, AgentInfo, AgentRegistration, AgentRevisionInfo
    from tenure.sdk.client import Client
    from tenure.sdk.errors import (
        BudgetExceeded,
        ResultMismatch,
        ServerFailed,
        TaskCancelled,
        TaskEnded,
        TaskFailed,
        TaskTimedOut,
    )
    from tenure.sdk.events import (
        AssistantMessageEvent,
        AttemptLostEvent,
        BudgetWarningEvent,
        CancelRequestEvent,
        ControlFailureEvent,
        ControlStepEvent,
        Event,
        HeartbeatEvent,
        LiveTextEvent,
        ModelAttemptEvent,
        ModelFailureEvent,
        OtherEvent,
        ResultRejectedEvent,
        SubAgentsSpawnedEvent,
        SubmittedEvent,
        TaskChangeEvent,
        ToolIntentEvent,
        ToolOutcomeEvent,
        ToolsDefinedEvent,
        TransitionEvent,
        UserMessageEvent,
        WaitResolutionEvent,
    )
    from tenure.sdk.sync_client import SyncClient, SyncTask
    from tenure.sdk.task import Task
    from tenure.sdk.task_info import (
        BudgetNeed,
        StateCount,
        TaskBudget,
        TaskCounts,
        TaskFile,
        TaskInfo,
        TaskLimits,
        TaskPage,
        TaskWait,
    )

# gRPC reads it when it is imported. Otherwise it starts its threads again in each child of a fork, also in one that
# does not call it, and the child crashes when a call ran during the fork.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

_ERRORS: Final = "TaskEnded TaskFailed TaskCancelled TaskTimedOut BudgetExceeded ResultMismatch ServerFailed"
_EVENTS: Final = (
    "Event LiveTextEvent SubmittedEvent TransitionEvent ToolsDefinedEvent ModelAttemptEvent ModelFailureEvent "
    "AttemptLostEvent AssistantMessageEvent ToolIntentEvent ToolOutcomeEvent UserMessageEvent CancelRequestEvent "
    "WaitResolutionEvent ControlStepEvent ControlFailureEvent ResultRejectedEvent BudgetWarningEvent "
    "SubAgentsSpawnedEvent OtherEvent TaskChangeEvent HeartbeatEvent"
)
_DOMAIN_ERRORS: Final = (
    "TenureError Refused InvalidRequest NotFound AlreadyExists WrongState BudgetExhausted OutOfRange Unauthenticated "
    "PermissionDenied TryLater Unavailable LimitReached"
)
_MODULES: Final = {
    "tenure.sdk.agent_info": "AgentDetails AgentInfo AgentRegistration AgentRevisionInfo",
    "tenure.sdk.client": "Client",
    "tenure.sdk.sync_client": "SyncClient SyncTask",
    "tenure.sdk.task": "Task",
    "tenure.sdk.task_info": (
        "TaskInfo TaskWait TaskBudget TaskLimits TaskPage TaskCounts StateCount TaskFile BudgetNeed"
    ),
    "tenure.sdk.events": _EVENTS,
    "tenure.sdk.errors": _ERRORS,
    "tenure.domain.errors": _DOMAIN_ERRORS,
    "tenure.domain.budget": "TokenUsage",
    "tenure.domain.outputs": "TaskOutput",
    "tenure.domain.retry": "RetryPolicy",
    "tenure.domain.states": "TaskState",
    "tenure.domain.task": (
        "Priority Source SourceKind TaskPolicy BudgetPolicy InDoubtPolicy InputFile LeaseLostPolicy NoProgressPolicy "
        "SubAgentLimits"
    ),
    "tenure.domain.timeouts": "Timeouts PhaseTimeout TimeoutAction",
    "tenure.domain.tools": "EffectClass OutcomeStatus ToolDefinition",
    "tenure.domain.waits": "WaitKind",
    "tenure.runtime.rpc.channels": "UsedBeforeFork",
    "tenure.runtime.security.tls": "ClientTls",
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "AgentDetails",
    "AgentInfo",
    "AgentRegistration",
    "AgentRevisionInfo",
    "AlreadyExists",
    "AssistantMessageEvent",
    "AttemptLostEvent",
    "BudgetExceeded",
    "BudgetExhausted",
    "BudgetNeed",
    "BudgetPolicy",
    "BudgetWarningEvent",
    "CancelRequestEvent",
    "Client",
    "ClientTls",
    "ControlFailureEvent",
    "ControlStepEvent",
    "EffectClass",
    "Event",
    "HeartbeatEvent",
    "InDoubtPolicy",
    "InputFile",
    "InvalidRequest",
    "LeaseLostPolicy",
    "LimitReached",
    "LiveTextEvent",
    "ModelAttemptEvent",
    "ModelFailureEvent",
    "NoProgressPolicy",
    "NotFound",
    "OtherEvent",
    "OutOfRange",
    "OutcomeStatus",
    "PermissionDenied",
    "PhaseTimeout",
    "Priority",
    "Refused",
    "ResultMismatch",
    "ResultRejectedEvent",
    "RetryPolicy",
    "ServerFailed",
    "Source",
    "SourceKind",
    "StateCount",
    "SubAgentLimits",
    "SubAgentsSpawnedEvent",
    "SubmittedEvent",
    "SyncClient",
    "SyncTask",
    "Task",
    "TaskBudget",
    "TaskCancelled",
    "TaskChangeEvent",
    "TaskCounts",
    "TaskEnded",
    "TaskFailed",
    "TaskFile",
    "TaskInfo",
    "TaskLimits",
    "TaskOutput",
    "TaskPage",
    "TaskPolicy",
    "TaskState",
    "TaskTimedOut",
    "TaskWait",
    "TenureError",
    "TimeoutAction",
    "Timeouts",
    "TokenUsage",
    "ToolDefinition",
    "ToolIntentEvent",
    "ToolOutcomeEvent",
    "ToolsDefinedEvent",
    "TransitionEvent",
    "TryLater",
    "Unauthenticated",
    "Unavailable",
    "UsedBeforeFork",
    "UserMessageEvent",
    "WaitKind",
    "WaitResolutionEvent",
    "WrongState",
]


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'tenure' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
