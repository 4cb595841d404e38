"""Stops calls that the ledger has settled without their ends.

A task may end while no worker has it, and a worker without the runner may take it over. The ledger settles the open
attempt then, and accepts no end of the call afterwards: the rest of the answer would be paid for without a use.
"""

from __future__ import annotations

import logging
from typing import Any, Final, Never

from services.models.runs import GenerationRun, Runs
from tenure.domain.errors import TenureError
from tenure.domain.retry import FailureClass
from tenure.runtime.observability import metrics
from tenure.runtime.process import rest
from tenure.runtime.rpc.client import TenureChannel
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import checkpoint_service_pb2_grpc as grpc_pb

_log: Final = logging.getLogger(__name__)
EVERY_SECONDS: Final = 2.0
MAX_CALLS: Final = 512
TIMEOUT_SECONDS: Final = 10.0


class SettledCalls:
    """The duty `run`. It asks for calls with a reader, too: a worker that lost its task may still read."""

    def __init__(self, runs: Runs, checkpoint: TenureChannel) -> None:
        self._runs = runs
        self._stub: Any = grpc_pb.CheckpointServiceStub(checkpoint)
        self._fails = False

    async def run(self) -> Never:
        """Stops settled calls regularly."""
        while True:
            await rest(EVERY_SECONDS)
            try:
                await self.stop_settled()
            except (TenureError, PeerFailed) as error:  # the calls go on meanwhile
                if not self._fails:
                    _log.warning("cannot learn which model calls are settled", extra={"why": str(error)})
                self._fails = True
            else:
                self._fails = False

    async def stop_settled(self) -> None:
        """Asks the ledger once for all calls of this process, and stops the settled ones."""
        runs = self._runs.in_flight()
        for start in range(0, len(runs), MAX_CALLS):
            part = runs[start : start + MAX_CALLS]
            request = pb.InspectModelCallsRequest(calls=map(_call, part))
            answer = await self._stub.InspectModelCalls(request, timeout=TIMEOUT_SECONDS)
            for run, verdict in zip(part, answer.verdicts, strict=True):
                if verdict.settled and not run.over.is_set():
                    _stop(run)


def _call(run: GenerationRun) -> pb.InspectModelCallsRequest.ModelCall:
    step, number = run.key.attempt
    return pb.InspectModelCallsRequest.ModelCall(task_id=str(run.key.task_id), step=step, attempt_number=number)


def _stop(run: GenerationRun) -> None:
    run.is_settled = True
    run.stop(FailureClass.INTERRUPTED)
    metrics.count("tenure_models_calls_settled_total")
    _log.info("a model call is stopped: the ledger has settled it", extra={"attempt": run.work.request.attempt})
