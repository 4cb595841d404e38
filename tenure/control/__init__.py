"""Control functions: your own functions that workers run as durable tasks.

    async def month_end(work: Work, given: Any) -> Any:
        total = await work.step("total", add_up, given["month"])  # the result is recorded before the function continues
        await work.call_tool("append_record", {"file": "books", "line": f"{given['month']}: {total}"})
        return {"total": total}

    FUNCTIONS = {"month_end": month_end}  # workers import the modules in TENURE_WORKER_CONTROL_MODULES

Another worker may start a function again at any time. The ledger then answers the steps and calls that were recorded.
So put everything that has an effect, takes long or is not deterministic into a step or a call.

error_classes.py  the class of an exception of any library as a failure of a model call
failures.py       TryAgain, StepFailed, ToolFailed, ResultLost, and how an exception is recorded
model_calls.py    the request, the report and the answer of a model call
own_tools.py      OwnTool: a coroutine as a tool, run by the worker behind the tool service's fence
work.py           Work: the steps, model calls and tool calls of a control function
"""

from tenure.control.failures import ResultLost, StepFailed, ToolFailed, TryAgain
from tenure.control.model_calls import ModelCallAnswer, ModelCallReport, ModelCallRequest, RunModelCall
from tenure.control.own_tools import EffectUnknown, OwnTool, OwnToolContext, compensate_with
from tenure.control.work import Function, LookUp, RecordedCall, Work
from tenure.domain.budget import TokenUsage
from tenure.domain.effect_keys import EffectKey, EffectScope, OnRepeat
from tenure.domain.tools import EffectClass

__all__ = (
    "EffectClass",
    "EffectKey",
    "EffectScope",
    "EffectUnknown",
    "Function",
    "LookUp",
    "ModelCallAnswer",
    "ModelCallReport",
    "ModelCallRequest",
    "OnRepeat",
    "OwnTool",
    "OwnToolContext",
    "RecordedCall",
    "ResultLost",
    "RunModelCall",
    "StepFailed",
    "TokenUsage",
    "ToolFailed",
    "TryAgain",
    "Work",
    "compensate_with",
)
