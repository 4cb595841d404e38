"""How many tasks a tenant may have running: counted where a task begins to run, under a lock of the tenant's.

Offers count too, so that hardly anything is granted in vain. But what two of them find at once is more than there is
room for, and a grant may be opened late: the count that holds is this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.checkpoint.queries import QUEUE, fetch_one
from tenure.domain.errors import WrongState
from tenure.domain.quotas import QuotaKind
from tenure.domain.states import Reason, TaskState

if TYPE_CHECKING:
    from tenure.runtime.postgres import Connection


async def check_room_to_run(connection: Connection, tenant: str) -> None:
    """Raises WrongState when the tenant has as many running as it may: whoever was granted the task is to let it go.

    To be called with the task's row locked. Two statements: the second one sees what was committed before the first
    one got the lock.
    """
    if await fetch_one(connection, QUEUE.lock_running, {"tenant": tenant}) is None:
        return
    found = await fetch_one(connection, QUEUE.count_running, {"tenant": tenant})
    if found is not None and found[1] >= found[0]:
        raise WrongState(
            f"the tenant has {found[1]} tasks running, of {found[0]} that it may have",
            reason=Reason.TENANT_QUOTA,
            metadata={"state": TaskState.QUEUED.value, "quota": QuotaKind.RUNNING_TASKS.value},
        )
