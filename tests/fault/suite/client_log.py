"""What the clients did and saw, as the checker wants it: every call and its answer, every stream and its entries."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from checker.history import (
    BoundRecord,
    Delivered,
    Method,
    Operation,
    OperationResult,
    StopRecord,
    Subscription,
)
from tenure.domain.errors import Refused, TenureError, TryLater
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.common import STATES


@dataclass(slots=True)
class Call:
    """A call under way; `answered` completes it."""

    operation: Operation

    def answered(self, task: task_pb2.Task) -> None:
        self.operation = replace(
            self.operation,
            answer=OperationResult.OK,
            task_id=task.task_id,
            sequence=task.sequence,
            state=STATES.to_domain(task.state),
            result=task.result,
            seen_tenant=task.tenant,
        )


@dataclass(slots=True)
class Stream:
    """A stream under way."""

    client: str
    task_id: str
    after_sequence: int
    tenant: str
    delivered: list[Delivered] = field(default_factory=list)
    ended: bool = False

    @property
    def last(self) -> int:
        return self.delivered[-1].sequence if self.delivered else self.after_sequence


@dataclass(slots=True)
class ClientLog:
    """`surprises`: answers that the contract does not know, in words. `stops`, `bounds`: as they were confirmed."""

    operations: list[Operation] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)
    stops: list[StopRecord] = field(default_factory=list)
    bounds: list[BoundRecord] = field(default_factory=list)

    @contextmanager
    def call(self, client: str, method: Method, **known: object) -> Iterator[Call]:
        """Logs one call, however it ends. Errors that a client has to expect end here."""
        started = time.monotonic()
        call = Call(
            Operation(client=client, method=method, answer=OperationResult.UNKNOWN, invoked_monotonic=started, **known)  # type: ignore[arg-type]  # fields of Operation
        )
        try:
            yield call
        except TryLater as error:
            call.operation = replace(call.operation, reason=error.reason)
        except Refused as error:
            call.operation = replace(call.operation, answer=OperationResult.FAILED, reason=error.reason)
        except (TenureError, PeerFailed) as error:
            self.surprises.append(f"{client} {method}: {type(error).__name__} {error}")
        finally:
            self.operations.append(replace(call.operation, returned_monotonic=time.monotonic()))

    def subscriptions(self) -> tuple[Subscription, ...]:
        return tuple(
            Subscription(
                client=stream.client,
                task_id=stream.task_id,
                after_sequence=stream.after_sequence,
                delivered=tuple(stream.delivered),
                ended=stream.ended,
                tenant=stream.tenant,
            )
            for stream in self.streams
        )


def request_hash(request: api.SubmitTaskRequest) -> bytes:
    return hashlib.sha256(request.SerializeToString(deterministic=True)).digest()
