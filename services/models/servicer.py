"""ModelService: verifies fencing tokens, decides each request under the task's fence, and gives callers their call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from services.models.admission import ModelCallLimits
from services.models.reading import RunReader, state_part
from services.models.relay import Relay, was_relayed
from services.models.rules import Attempt, BeginCall, CallIntent, EndedCall, JoinRun, Kind, RelayCall, Verdict
from services.models.runs import GenerationRun, Runs
from services.models.store import AdmittedRequest
from services.models.vendor_requests import check_same, parts_of_end
from services.models.work import CallWork, ModelCallKey, read_prompt, read_work
from tenure.domain.budget import TokenUsage
from tenure.domain.errors import LimitReached, PermissionDenied
from tenure.domain.fencing import Claims
from tenure.domain.retry import FailureClass
from tenure.runtime.observability import metrics
from tenure.runtime.rpc.server import draining
from tenure.runtime.store.batching import Batcher
from tenure.v1 import model_service_pb2 as pb
from tenure.v1 import token_pb2
from tenure.v1.model_service_pb2_grpc import ModelServiceServicer
from tenure.wire.token import TokenChecker

SERVICE: Final = "tenure.v1.ModelService"


class ModelServicer(ModelServiceServicer):
    """`requests`: decides requests, a batch at a time."""

    def __init__(
        self,
        tokens: TokenChecker,
        requests: Batcher[AdmittedRequest, Verdict],
        runs: Runs,
        relay: Relay,
        limits: ModelCallLimits,
    ) -> None:
        self._tokens, self._requests, self._runs, self._relay = tokens, requests, runs, relay
        self._limits = limits

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Makes a call, joins it, or answers from the record. Raises StaleEpoch, WrongState, TryLater."""
        claims, key = self._check(request.token, request.step, request.attempt_number)
        work = read_work(request, key, claims)
        verdict = await self._admit(Kind.GENERATE, claims, key, context, request.reserved_epoch, work)
        async with aclosing(self._parts(key, verdict, request, claims.epoch, work.digest)) as parts:
            async for part in parts:
                yield part

    async def CancelGeneration(self, request: pb.CancelGenerationRequest, context: Any) -> pb.CancelGenerationResponse:
        """Stops a call, and returns its end once it is recorded. Raises StaleEpoch, WrongState, TryLater."""
        claims, key = self._check(request.token, request.step, request.attempt_number)
        verdict = await self._admit(Kind.CANCEL, claims, key, context, request.reserved_epoch)
        run = self._runs.find(key)
        if run is not None:
            run.stop(FailureClass.INTERRUPTED)
        match verdict:
            case RelayCall():
                return await self._relay.cancel(verdict, request)
            case EndedCall(row):
                return _cancelled(row.ended if row.begun_epoch else None)
        run = _must_be_here(run)
        await run.over.wait()
        if run.error is not None:
            raise run.error
        run.received_under.add(claims.epoch)
        return _cancelled(run.end)

    async def CountInputTokens(self, request: pb.CountInputTokensRequest, _context: Any) -> pb.CountInputTokensResponse:
        """Returns the provider's count of a prompt, if it has one."""
        self._check(request.token, 1, 1)
        return pb.CountInputTokensResponse(input_tokens=await self._limits.count(read_prompt(request.prompt)))

    async def _admit(
        self,
        kind: Kind,
        claims: Claims,
        key: ModelCallKey,
        context: Any,
        reserved_epoch: int,
        work: CallWork | None = None,
    ) -> Verdict:
        """Decides a request under the lock of the task's row. A new call that need not wait is SENT from then on."""
        if work is not None and self._runs.refuse_new(work.limited) is None and self._runs.find(key) is None:
            work.permit = self._limits.admit_now(work.limited)
        sends_at = datetime.now(UTC) if work is not None and work.permit is not None else None
        intent = CallIntent(
            kind,
            claims.fence,
            key.attempt,
            sends_at,
            was_relayed=was_relayed(context),
            reserved_epoch=min(reserved_epoch, claims.epoch),
        )
        admitted = AdmittedRequest(key, claims.tenant, intent, work)
        return await self._decided(admitted)

    async def _decided(self, admitted: AdmittedRequest) -> Verdict:
        """Returns the verdict. A permit goes back unless the call was sent with it, also if the caller has gone."""
        decided: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        permit = None if admitted.work is None else admitted.work.permit

        def take(result: Verdict | Exception) -> None:
            if permit is not None and not isinstance(result, BeginCall):
                permit.close(TokenUsage(), None)
            if decided.done():  # the caller was cancelled
                return
            if isinstance(result, Exception):
                decided.set_exception(result)
            else:
                decided.set_result(result)

        try:
            self._requests.enqueue(admitted, take)
        except LimitReached as full:
            take(full)
        return await decided

    async def _parts(
        self, key: ModelCallKey, verdict: Verdict, request: pb.GenerateRequest, epoch: int, digest: bytes
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Yields the answer to Generate."""
        metrics.count("tenure_models_requests_total", way=_way(verdict))
        match verdict:
            case RelayCall():
                async with aclosing(self._relay.generate(verdict, request)) as parts:
                    async for part in parts:
                        yield part
            case EndedCall(row):
                *before, end = parts_of_end(row.ended or b"")
                if not end.HasField("failure"):
                    check_same(end.vendor_end.request_digest, digest)
                for part in (state_part(row, joined=True), *before, end):
                    yield part
                if (run := self._runs.find(key)) is not None:
                    run.received_under.add(epoch)
            case BeginCall() | JoinRun():
                joined = isinstance(verdict, JoinRun) or verdict.joined
                begun = _must_be_here(self._runs.find(key))
                check_same(begun.work.digest, digest)
                async with aclosing(RunReader(begun, epoch).messages(joined=joined)) as messages:
                    async for message in messages:
                        yield message

    def _check(self, token: token_pb2.FencingToken, step: int, attempt_number: int) -> tuple[Claims, ModelCallKey]:
        claims = self._tokens.check(token)
        try:
            return claims, ModelCallKey(UUID(claims.task_id), Attempt(step, attempt_number))
        except ValueError as error:
            raise PermissionDenied(
                f"the fencing token is for {claims.resource!r}, which is not a task; present a task's token",
                reason="WRONG_RESOURCE",
            ) from error


def _way(verdict: Verdict) -> str:
    """Returns how a Generate was answered, for metrics."""
    match verdict:
        case BeginCall(_, joined):
            return "TAKEN_OVER" if joined else "BEGUN"
        case JoinRun():
            return "JOINED"
        case RelayCall():
            return "RELAYED"
        case EndedCall(_, lost_now):
            return "LOST" if lost_now else "RECORDED"


def _must_be_here(run: GenerationRun | None) -> GenerationRun:
    """Returns the run. Raises Unavailable if this process gave it up a moment ago."""
    if run is None:
        raise draining()
    return run


def _cancelled(end: bytes | None) -> pb.CancelGenerationResponse:
    """Returns the answer to CancelGeneration. None: there was no such call."""
    if end is None:
        return pb.CancelGenerationResponse()
    part = pb.GenerateResponse.FromString(end)
    match part.WhichOneof("part"):
        case "answer":
            return pb.CancelGenerationResponse(answer=part.answer)
        case "vendor_end":
            part.vendor_end.ClearField("compressed_body")
            return pb.CancelGenerationResponse(vendor_end=part.vendor_end)
    return pb.CancelGenerationResponse(failure=part.failure)
