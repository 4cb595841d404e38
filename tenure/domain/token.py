"""What a fencing token says. Signing and checking: tenure/runtime/signing.py."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.domain.epochs import Fence
from tenure.domain.errors import PermissionDenied

TASK_PREFIX = "tasks/"
LEASE_PREFIX = "leases/"


@dataclass(frozen=True, slots=True)
class Claims:
    """A claim as its token states it. `tools` None: all of the tenant's. No expiry: the fences decide."""

    resource: str
    tenant: str
    epoch: int
    claim_id: str
    holder: str
    tools: tuple[str, ...] | None = None

    @property
    def fence(self) -> Fence:
        """What guards compare."""
        return Fence(self.epoch, self.claim_id)

    @property
    def task_id(self) -> str:
        """The task; PermissionDenied when the token is for something else."""
        if not self.resource.startswith(TASK_PREFIX):
            raise PermissionDenied(f"a token for {self.resource!r} opens no task", reason="WRONG_RESOURCE")
        return self.resource.removeprefix(TASK_PREFIX)

    @property
    def lease_name(self) -> str:
        """The named resource; PermissionDenied when the token is for something else, such as a task."""
        if not self.resource.startswith(LEASE_PREFIX):
            raise PermissionDenied(f"a token for {self.resource!r} holds no lease", reason="WRONG_RESOURCE")
        return self.resource.removeprefix(LEASE_PREFIX)

    def allows_tool(self, name: str) -> bool:
        """Whether the task may call this tool."""
        return self.tools is None or name in self.tools
