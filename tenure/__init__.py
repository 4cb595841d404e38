"""Tenure: durable tasks for AI agents. The public Python API.

    from tenure import Client, SyncClient

docs/client.md is the guide. A name is imported at its first use, so that `import tenure.domain` brings no gRPC along.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tenure.domain.budget import TokenUsage as TokenUsage
    from tenure.domain.errors import AlreadyExists as AlreadyExists
    from tenure.domain.errors import BudgetExhausted as BudgetExhausted
    from tenure.domain.errors import InvalidRequest as InvalidRequest
    from tenure.domain.errors import LimitReached as LimitReached
    from tenure.domain.errors import NotFound as NotFound
    from tenure.domain.errors import OutOfRange as OutOfRange
    from tenure.domain.errors import PermissionDenied as PermissionDenied
    from tenure.domain.errors import Refused as Refused
    from tenure.domain.errors import TenureError as TenureError
    from tenure.domain.errors import TryLater as TryLater
    from tenure.domain.errors import Unauthenticated as Unauthenticated
    from tenure.domain.errors import Unavailable as Unavailable
    from tenure.domain.errors import WrongState as WrongState
    from tenure.domain.outputs import TaskOutput as TaskOutput
    from tenure.domain.retry import RetryPolicy as RetryPolicy
    from tenure.domain.states import TaskState as TaskState
    from tenure.domain.task import BudgetPolicy as BudgetPolicy
    from tenure.domain.task import FailurePolicy as FailurePolicy
    from tenure.domain.task import InDoubtPolicy as InDoubtPolicy
    from tenure.domain.task import InputFile as InputFile
    from tenure.domain.task import LeaseLostPolicy as LeaseLostPolicy
    from tenure.domain.task import NoProgressPolicy as NoProgressPolicy
    from tenure.domain.task import Priority as Priority
    from tenure.domain.task import Source as Source
    from tenure.domain.task import SourceKind as SourceKind
    from tenure.domain.task import SubAgentLimits as SubAgentLimits
    from tenure.domain.task import TaskPolicy as TaskPolicy
    from tenure.domain.timeouts import PhaseTimeout as PhaseTimeout
    from tenure.domain.timeouts import TimeoutAction as TimeoutAction
    from tenure.domain.timeouts import Timeouts as Timeouts
    from tenure.domain.tools import EffectClass as EffectClass
    from tenure.domain.tools import OutcomeStatus as OutcomeStatus
    from tenure.domain.tools import ToolDefinition as ToolDefinition
    from tenure.domain.undo import UndoVerdict as UndoVerdict
    from tenure.domain.waits import WaitKind as WaitKind
    from tenure.runtime.rpc.channels import UsedBeforeFork as UsedBeforeFork
    from tenure.runtime.security.tls import ClientTls as ClientTls
    from tenure.sdk.agent_info import AgentDetails as AgentDetails
    from tenure.sdk.agent_info import AgentInfo as AgentInfo
    from tenure.sdk.agent_info import AgentRegistration as AgentRegistration
    from tenure.sdk.agent_info import AgentRevisionInfo as AgentRevisionInfo
    from tenure.sdk.client import Client as Client
    from tenure.sdk.errors import BudgetExceeded as BudgetExceeded
    from tenure.sdk.errors import ResultMismatch as ResultMismatch
    from tenure.sdk.errors import ServerFailed as ServerFailed
    from tenure.sdk.errors import TaskCancelled as TaskCancelled
    from tenure.sdk.errors import TaskEnded as TaskEnded
    from tenure.sdk.errors import TaskFailed as TaskFailed
    from tenure.sdk.errors import TaskTimedOut as TaskTimedOut
    from tenure.sdk.events import AssistantMessageEvent as AssistantMessageEvent
    from tenure.sdk.events import AttemptLostEvent as AttemptLostEvent
    from tenure.sdk.events import BudgetWarningEvent as BudgetWarningEvent
    from tenure.sdk.events import CancelRequestEvent as CancelRequestEvent
    from tenure.sdk.events import ControlFailureEvent as ControlFailureEvent
    from tenure.sdk.events import ControlStepEvent as ControlStepEvent
    from tenure.sdk.events import Event as Event
    from tenure.sdk.events import HeartbeatEvent as HeartbeatEvent
    from tenure.sdk.events import LiveTextEvent as LiveTextEvent
    from tenure.sdk.events import ModelAttemptEvent as ModelAttemptEvent
    from tenure.sdk.events import ModelFailureEvent as ModelFailureEvent
    from tenure.sdk.events import OtherEvent as OtherEvent
    from tenure.sdk.events import ResultRejectedEvent as ResultRejectedEvent
    from tenure.sdk.events import SubAgentsSpawnedEvent as SubAgentsSpawnedEvent
    from tenure.sdk.events import SubmittedEvent as SubmittedEvent
    from tenure.sdk.events import TaskChangeEvent as TaskChangeEvent
    from tenure.sdk.events import ToolIntentEvent as ToolIntentEvent
    from tenure.sdk.events import ToolOutcomeEvent as ToolOutcomeEvent
    from tenure.sdk.events import ToolsDefinedEvent as ToolsDefinedEvent
    from tenure.sdk.events import TransitionEvent as TransitionEvent
    from tenure.sdk.events import UserMessageEvent as UserMessageEvent
    from tenure.sdk.events import WaitResolutionEvent as WaitResolutionEvent
    from tenure.sdk.spool import Spool as Spool
    from tenure.sdk.spool import SyncSpool as SyncSpool
    from tenure.sdk.spool_file import SpooledSubmit as SpooledSubmit
    from tenure.sdk.sync_client import SyncClient as SyncClient
    from tenure.sdk.sync_client import SyncTask as SyncTask
    from tenure.sdk.task import Task as Task
    from tenure.sdk.task_info import BudgetNeed as BudgetNeed
    from tenure.sdk.task_info import CallPlan as CallPlan
    from tenure.sdk.task_info import StateCount as StateCount
    from tenure.sdk.task_info import TaskBudget as TaskBudget
    from tenure.sdk.task_info import TaskCounts as TaskCounts
    from tenure.sdk.task_info import TaskFile as TaskFile
    from tenure.sdk.task_info import TaskInfo as TaskInfo
    from tenure.sdk.task_info import TaskLimits as TaskLimits
    from tenure.sdk.task_info import TaskPage as TaskPage
    from tenure.sdk.task_info import TaskWait as TaskWait
    from tenure.sdk.undo_info import UndoEffect as UndoEffect
    from tenure.sdk.undo_info import UndoPlan as UndoPlan

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
    "tenure.sdk.spool": "Spool SyncSpool",
    "tenure.sdk.spool_file": "SpooledSubmit",
    "tenure.sdk.sync_client": "SyncClient SyncTask",
    "tenure.sdk.task": "Task",
    "tenure.sdk.task_info": (
        "TaskInfo TaskWait CallPlan TaskBudget TaskLimits TaskPage TaskCounts StateCount TaskFile BudgetNeed"
    ),
    "tenure.sdk.undo_info": "UndoEffect UndoPlan",
    "tenure.sdk.events": _EVENTS,
    "tenure.sdk.errors": _ERRORS,
    "tenure.domain.errors": _DOMAIN_ERRORS,
    "tenure.domain.budget": "TokenUsage",
    "tenure.domain.outputs": "TaskOutput",
    "tenure.domain.retry": "RetryPolicy",
    "tenure.domain.states": "TaskState",
    "tenure.domain.task": (
        "Priority Source SourceKind TaskPolicy BudgetPolicy FailurePolicy InDoubtPolicy InputFile LeaseLostPolicy "
        "NoProgressPolicy SubAgentLimits"
    ),
    "tenure.domain.timeouts": "Timeouts PhaseTimeout TimeoutAction",
    "tenure.domain.tools": "EffectClass OutcomeStatus ToolDefinition",
    "tenure.domain.undo": "UndoVerdict",
    "tenure.domain.waits": "WaitKind",
    "tenure.runtime.rpc.channels": "UsedBeforeFork",
    "tenure.runtime.security.tls": "ClientTls",
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names.split()}

if not TYPE_CHECKING:  # a type checker takes the names that are imported above under their own name
    __all__ = sorted(_MODULE_OF)  # noqa: PLE0605  ruff wants a display of the list


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'tenure' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
