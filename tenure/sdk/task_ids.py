"""The one place that turns the first characters of a task's id into the id: for commands, and for paths over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from tenure.domain.errors import InvalidRequest, NotFound
from tenure.domain.task_ids import MIN_PREFIX_DIGITS, id_range, whole_task_id
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api

NAMED_AT_MOST: Final = 5
_LENGTHS: Final = (13, 18, 23, 36)
"""Where the parts of an id end, from its millisecond on."""

ListTasks = Callable[[api.ListTasksRequest], Awaitable[api.ListTasksResponse]]


async def find_task_id(list_tasks: ListTasks, text: str, *, field: str = "task_id") -> str:
    """Returns the id that a text is or begins. A whole id is not looked up. `list_tasks`: the method of the service.
    `field`: what the caller calls the text.

    Raises NotFound if no id begins with it, and InvalidRequest (AMBIGUOUS_TASK_ID {task_ids}) if several do.
    """
    whole = whole_task_id(text.strip())
    if whole is not None:
        return whole
    if id_range(text) is None:
        message = (
            f"{text!r} is not the id of a task: write the id, or its first characters, {MIN_PREFIX_DIGITS} or more"
        )
        raise InvalidRequest(violations=[(field, message)])
    wanted = task_pb2.TaskFilter(task_id_prefix=text.strip())
    page = await list_tasks(api.ListTasksRequest(filter=wanted, page_size=NAMED_AT_MOST + 1, fresh=True))
    task_ids = [task.task_id for task in page.tasks]
    if not task_ids:
        raise NotFound(f"no task has an id that begins with {text}")
    if len(task_ids) > 1:
        named = task_ids[:NAMED_AT_MOST]
        length = next(n for n in _LENGTHS if len({task_id[:n] for task_id in named}) == len(named))
        texts = ", ".join(task_id[:length] for task_id in named)
        more = ", …" if len(task_ids) > NAMED_AT_MOST or page.next_page_token else ""
        raise InvalidRequest(
            f"several ids of tasks begin with {text}; give more characters of one of: {texts}{more}",
            reason="AMBIGUOUS_TASK_ID",
            metadata={"task_ids": ",".join(named)},
        )
    return task_ids[0]
