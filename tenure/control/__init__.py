"""Control work: functions of your own that workers run as durable tasks, without a model.

    async def month_end(work: Work, given: Any) -> Any:
        total = await work.step("total", add_up, given["month"])  # its result is recorded before the function goes on
        await work.call_tool("append_record", {"file": "books", "line": f"{given['month']}: {total}"})
        return {"total": total}

    FUNCTIONS = {"month_end": month_end}  # a worker is told this module: TENURE_WORKER_CONTROL_MODULES

A function may be begun again at any time, by another worker: what it did by steps and calls is answered from the record
then. So whatever has an effect, takes long or may come out differently another time belongs into a step or a call.
"""

from tenure.control.failures import StepFailed, ToolFailed, TryAgain
from tenure.control.work import Function, Work

__all__ = ("Function", "StepFailed", "ToolFailed", "TryAgain", "Work")
