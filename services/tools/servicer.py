"""ToolService: verifies fencing tokens and passes each request to the part that answers it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from services.tools.calls.answers import execute_response, fence_response, refused_write
from services.tools.calls.bounds import count_planned_calls
from services.tools.calls.call_log import list_calls, list_refusals
from services.tools.calls.caller_runs import CallerRuns
from services.tools.calls.closing import CallForgetter, FenceCloser
from services.tools.calls.effect_keys import effect_of_call
from services.tools.calls.effect_list import list_effects
from services.tools.calls.execute_stream import ExecuteFrames
from services.tools.calls.executing import ExecuteJob, Executor
from services.tools.calls.following import CallFollower
from services.tools.calls.in_doubt import list_in_doubt
from services.tools.calls.keeping import ContentKeeper
from services.tools.calls.records import CallKey, CallRequest, CallSummary
from services.tools.calls.runs import EventReader
from services.tools.calls.stops import StopKeeper, list_calls_in_flight
from services.tools.own_tools import check_own_call, check_own_effect_key, read_own_outcome
from services.tools.pins import ToolPins, no_such_source
from services.tools.registry import ToolRegistry
from services.tools.rules.book import listed_rules
from services.tools.rules.changes import RuleChanges
from services.tools.rules.trying import try_rule
from services.tools.tool import Arguments, Tool, ToolWork
from services.tools.workspace.kept import ContentPart
from services.tools.workspace.requests import FileRequests, copy_response, list_response, read_response
from tenure.domain.effect_keys import Effect
from tenure.domain.errors import InvalidRequest, PermissionDenied
from tenure.domain.fencing import Claims
from tenure.domain.tool_schemas import OWN_FORM
from tenure.domain.tools import EffectClass, Outcome
from tenure.runtime.request_context import current_tenant
from tenure.runtime.service import instance_id
from tenure.runtime.store.postgres import Pool
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.v1 import token_pb2, tool_pb2, tool_service_pb2
from tenure.v1.tool_service_pb2_grpc import ToolServiceServicer
from tenure.validators import validate
from tenure.wire.common import moment, seconds
from tenure.wire.stops import stop_to_domain, stop_to_wire
from tenure.wire.token import TokenChecker
from tenure.wire.tool import kept_to_wire, resolution_to_domain, resolved_call_to_domain, tool_to_domain, tool_to_wire

_log: Final = logging.getLogger(__name__)
SERVICE: Final = "tenure.v1.ToolService"


class ToolServicer(ToolServiceServicer):
    """`stopping` ends streams when the server drains."""

    def __init__(
        self,
        tokens: TokenChecker,
        registry: ToolRegistry,
        pins: ToolPins,
        executor: Executor,
        closing: FenceCloser,
        forgetting: CallForgetter,
        files: FileRequests,
        pool: Pool,
        stopping: asyncio.Event,
        caller_runs: CallerRuns,
        stops: StopKeeper,
        rules: RuleChanges,
    ) -> None:
        self._stops = stops
        self._tokens, self._registry, self._pins, self._executor = tokens, registry, pins, executor
        self._caller_runs, self._rules = caller_runs, rules
        self._closing, self._forgetting = closing, forgetting
        self._files, self._pool, self._stopping = files, pool, stopping
        self._contents = ContentKeeper(pool, closing, files)
        self._fencing: set[asyncio.Task[list[CallSummary]]] = set()

    async def ListTools(
        self, request: tool_service_pb2.ListToolsRequest, _context: Any
    ) -> tool_service_pb2.ListToolsResponse:
        """Returns the tools that the token allows, and the allowed names that do not exist. Raises StaleEpoch."""
        claims, task_id = self._check(request.token)
        await self._closing.check(claims, task_id)
        await self._registry.wait_for_expected(claims)
        tools = [tool_to_wire(definition) for definition in self._registry.definitions(claims)]
        return tool_service_pb2.ListToolsResponse(tools=tools, unknown_names=self._registry.unknown_names(claims))

    async def CheckToolNames(
        self, request: tool_service_pb2.CheckToolNamesRequest, _context: Any
    ) -> tool_service_pb2.CheckToolNamesResponse:
        """Returns the names that do not exist, so that a submit can refuse them before any model call."""
        unknown = await self._registry.unknown(request.names, current_tenant())
        unknown_tools = [
            tool_service_pb2.CheckToolNamesResponse.UnknownTool(name=tool.name, nearest=tool.nearest)
            for tool in unknown
        ]
        return tool_service_pb2.CheckToolNamesResponse(unknown=unknown_tools)

    async def ListToolSources(
        self, _request: admin_pb.ListToolSourcesRequest, _context: Any
    ) -> admin_pb.ListToolSourcesResponse:
        """Returns the tool sources that the tenant may see."""
        sources = self._registry.facts.listed(current_tenant())
        return admin_pb.ListToolSourcesResponse(instance=instance_id(), sources=sources)

    async def AcceptTools(self, request: admin_pb.AcceptToolsRequest, _context: Any) -> admin_pb.AcceptToolsResponse:
        """Accepts held tools of a source."""
        seen = {tool.name: tool.sha256 for tool in request.tools}
        visible = {(source.kind, source.name) for source in self._registry.facts.listed(current_tenant())}
        if (tool_pb2.TOOL_SOURCE_KIND_MCP, request.name) not in visible:  # an HTTP tool may have the same name
            raise no_such_source(request.name)
        await self._pins.accept(request.name, seen, request.actor)
        return admin_pb.AcceptToolsResponse()

    async def ListOfferedTools(
        self, _request: admin_pb.ListOfferedToolsRequest, _context: Any
    ) -> admin_pb.ListOfferedToolsResponse:
        """Returns the tools that tasks of the tenant may use."""
        await self._registry.wait_for_all_expected(current_tenant())
        offered = self._registry.offered(current_tenant())
        tools = [tool_pb2.OfferedTool(definition=tool_to_wire(tool), source=source) for tool, source in offered]
        return admin_pb.ListOfferedToolsResponse(instance=instance_id(), tools=tools)

    async def Execute(
        self, request: tool_service_pb2.ExecuteRequest, _context: Any
    ) -> AsyncIterator[tool_service_pb2.ExecuteResponse]:
        """Runs one call. Raises InvalidRequest for a call that the caller would run itself: that needs a stream."""
        if request.HasField("own_tool"):
            raise InvalidRequest(violations=[("own_tool", "needs ExecuteStream, on which the order to run it arrives")])
        async with aclosing(self._executor.execute(self._request(request))) as events:
            async for event in events:
                yield execute_response(event)

    async def ExecuteStream(
        self, request_iterator: AsyncIterator[tool_service_pb2.ExecuteStreamRequest], _context: Any
    ) -> AsyncIterator[tool_service_pb2.ExecuteStreamResponse]:
        """Runs many calls, by tag."""

        def follow(call: tool_service_pb2.ExecuteRequest, reader: EventReader) -> CallFollower:
            validate(call)  # the validation of a frame does not include its calls
            return self._executor.follow(self._request(call), reader)

        async with aclosing(ExecuteFrames(follow, self._stopping).serve(request_iterator)) as answers:
            async for answer in answers:
                yield answer

    async def Fence(self, request: tool_service_pb2.FenceRequest, _context: Any) -> tool_service_pb2.FenceResponse:
        """Raises the fence; with `close` ends the task's calls. Runs to its end even when its caller goes away."""
        claims, task_id = self._check(request.token)
        resolved = [resolved_call_to_domain(one) for one in request.resolved_calls]
        fencing = asyncio.create_task(self._closing.fence(claims, task_id, close=request.close, resolved=resolved))
        self._fencing.add(fencing)
        fencing.add_done_callback(self._fenced)
        return fence_response(await asyncio.shield(fencing))

    async def Forget(self, request: tool_service_pb2.ForgetRequest, _context: Any) -> tool_service_pb2.ForgetResponse:
        """Deletes the records and the files of a pruned task."""
        claims, task_id = self._check(request.token)
        await self._forgetting.forget(claims, task_id)
        return tool_service_pb2.ForgetResponse()

    async def ListCalls(self, request: admin_pb.ListCallsRequest, _context: Any) -> admin_pb.ListCallsResponse:
        """Returns the call log of a task of the tenant."""
        return await list_calls(self._pool, current_tenant(), request)

    async def SetStops(
        self, request: tool_service_pb2.SetStopsRequest, _context: Any
    ) -> tool_service_pb2.SetStopsResponse:
        """Takes the ledger's stops."""
        kept = await self._stops.take(request.epoch, [stop_to_domain(stop) for stop in request.stops])
        return tool_service_pb2.SetStopsResponse(epoch=kept.epoch, stops=map(stop_to_wire, kept.stops))

    async def ListCallsInFlight(
        self, request: tool_service_pb2.ListCallsInFlightRequest, _context: Any
    ) -> tool_service_pb2.ListCallsInFlightResponse:
        """Returns the calls that a stop met."""
        return await list_calls_in_flight(self._pool, request.task_ids, moment(request.stop_time), request.tool)

    async def ListInDoubtCalls(
        self, request: admin_pb.ListInDoubtCallsRequest, _context: Any
    ) -> admin_pb.ListInDoubtCallsResponse:
        """Returns the tenant's calls in doubt."""
        return await list_in_doubt(self._pool, current_tenant(), request)

    async def ListEffects(self, request: admin_pb.ListEffectsRequest, _context: Any) -> admin_pb.ListEffectsResponse:
        """Returns the tenant's calls with an effect key."""
        return await list_effects(self._pool, current_tenant(), request)

    async def SetToolRule(self, request: admin_pb.SetToolRuleRequest, _context: Any) -> admin_pb.SetToolRuleResponse:
        """Creates or replaces a rule of the tenant."""
        return admin_pb.SetToolRuleResponse(tool_rule=await self._rules.set(current_tenant(), request))

    async def ListToolRules(
        self, _request: admin_pb.ListToolRulesRequest, _context: Any
    ) -> admin_pb.ListToolRulesResponse:
        """Lists the rules of the tenant."""
        return admin_pb.ListToolRulesResponse(tool_rules=await listed_rules(self._pool, current_tenant()))

    async def DeleteToolRule(
        self, request: admin_pb.DeleteToolRuleRequest, _context: Any
    ) -> admin_pb.DeleteToolRuleResponse:
        """Deletes a rule of the tenant."""
        return admin_pb.DeleteToolRuleResponse(deleted=await self._rules.delete(current_tenant(), request.name))

    async def TryToolRule(self, request: admin_pb.TryToolRuleRequest, _context: Any) -> admin_pb.TryToolRuleResponse:
        """Tries a rule on the tenant's recorded calls."""
        return await try_rule(self._pool, self._registry.form_of, current_tenant(), request)

    async def CountPlannedCalls(
        self, request: tool_service_pb2.CountPlannedCallsRequest, _context: Any
    ) -> tool_service_pb2.CountPlannedCallsResponse:
        """Returns what plans have counted, and ends them on request."""
        return await count_planned_calls(self._pool, current_tenant(), request)

    async def ListRefusedCalls(
        self, request: tool_service_pb2.ListRefusedCallsRequest, _context: Any
    ) -> tool_service_pb2.ListRefusedCallsResponse:
        """Returns the refused writes to a task of the tenant."""
        refusals = await list_refusals(self._pool, UUID(request.task_id), current_tenant())
        refused_calls = [refused_write(refusal) for refusal in refusals]
        return tool_service_pb2.ListRefusedCallsResponse(refused_calls=refused_calls)

    async def ListFiles(self, request: tasks_pb.ListFilesRequest, _context: Any) -> tasks_pb.ListFilesResponse:
        """Lists the workspace of a task of the tenant."""
        arguments = str(UUID(request.task_id)), request.path, request.page_token, request.page_size
        return list_response(await self._files.list(current_tenant(), *arguments), self._files.bounds)

    async def ReadFile(
        self, request: tasks_pb.ReadFileRequest, _context: Any
    ) -> AsyncIterator[tasks_pb.ReadFileResponse]:
        """Returns one file of a workspace, in parts."""
        arguments = str(UUID(request.task_id)), request.path, request.offset, request.version
        async with aclosing(self._files.read(current_tenant(), *arguments)) as parts:
            async for part in parts:
                yield read_response(request.path, part)

    async def CopyFiles(
        self, request: tool_service_pb2.CopyFilesRequest, _context: Any
    ) -> tool_service_pb2.CopyFilesResponse:
        """Copies a workspace for a fork that the ledger is about to create."""
        from_task_id, task_id = str(UUID(request.from_task_id)), str(UUID(request.task_id))
        return copy_response(await self._files.copy(current_tenant(), from_task_id, task_id))

    async def PutFiles(
        self, request: tool_service_pb2.PutFilesRequest, _context: Any
    ) -> tool_service_pb2.PutFilesResponse:
        """Puts the files of a submit, or of a message, that the ledger is about to accept."""
        files = {file.path: file.content for file in request.files}
        await self._files.put(current_tenant(), str(UUID(request.task_id)), files, request.message)
        return tool_service_pb2.PutFilesResponse()

    async def DigestFiles(
        self, request: tool_service_pb2.DigestFilesRequest, _context: Any
    ) -> tool_service_pb2.DigestFilesResponse:
        """Returns the digests of files of the claim's task. Raises StaleEpoch."""
        claims, task_id = self._check(request.token)
        await self._closing.check(claims, task_id)
        digests = await self._files.digests(claims.tenant, str(task_id), request.paths)
        files = [
            tool_service_pb2.FileDigest(path=path, digest=file.digest, size_bytes=file.size_bytes)
            for path, file in digests.items()
        ]
        return tool_service_pb2.DigestFilesResponse(files=files)

    async def KeepContent(
        self, request: tool_service_pb2.KeepContentRequest, _context: Any
    ) -> tool_service_pb2.KeepContentResponse:
        """Writes a part of content for the claim's task. Raises StaleEpoch."""
        claims, task_id = self._check(request.token)
        part = ContentPart(request.digest, request.size_bytes, request.offset, request.part)
        kept = await self._contents.keep(claims, task_id, part)
        return tool_service_pb2.KeepContentResponse(kept=None if kept is None else kept_to_wire(kept))

    async def ReadContent(
        self, request: tool_service_pb2.ReadContentRequest, _context: Any
    ) -> tool_service_pb2.ReadContentResponse:
        """Returns a part of kept content of the claim's task. Raises StaleEpoch."""
        claims, task_id = self._check(request.token)
        part = await self._contents.read(claims, task_id, request.path, request.offset)
        return tool_service_pb2.ReadContentResponse(part=part)

    def _request(self, request: tool_service_pb2.ExecuteRequest) -> ExecuteJob:
        claims, task_id = self._check(request.token)
        tool, arguments = self._tool(claims, request)
        effect = None
        if tool is not None and tool.definition.effect_key is not None and not isinstance(arguments, Outcome):
            effect = effect_of_call(tool.definition, claims, arguments, request.undoes)
            arguments = effect if isinstance(effect, Outcome) else arguments
        clear = arguments if isinstance(arguments, Outcome) else None
        is_own = request.HasField("own_tool")
        own_outcome = None
        settlement = None if tool is None or is_own else tool.definition.settlement
        if is_own and tool is not None and request.HasField("own_outcome"):
            own_outcome = read_own_outcome(request.own_outcome, tool.definition)
        call_request = CallRequest(
            key=CallKey(task_id, request.call_id),
            claims=claims,
            tool=request.tool.replace("\0", "\ufffd"),  # a model may invent any name, and a text column takes no NUL
            effect_class=EffectClass.PURE if clear or tool is None else tool.definition.effect_class,
            arguments_json=request.arguments_json.encode(),
            clear=clear,
            traceparent=request.traceparent,
            timeout_seconds=seconds(request.timeout),
            output_limit_bytes=limit_of_output(request, tool),
            resolution=resolution_to_domain(request.resolution) if request.HasField("resolution") else None,
            acts_elsewhere=tool is not None and tool.acts_elsewhere,
            runs_at_caller=is_own,
            own_outcome=own_outcome,
            undoes=request.undoes,
            has_check=settlement is not None and settlement.check_with is not None,
            form=OWN_FORM if is_own else self._registry.form_of(request.tool, claims.tenant),
            needs_approval=request.needs_approval,
        )
        if tool is None or isinstance(arguments, Outcome):
            return ExecuteJob(call_request, None)
        if isinstance(effect, Effect):
            patience_seconds = min(tool.definition.timeout_seconds, call_request.timeout_seconds or math.inf)
            call_request = replace(call_request, effect=effect, patience_seconds=patience_seconds)
        return ExecuteJob(call_request, ToolWork(tool, arguments, self._tokens.provider_token(request.token, claims)))

    def _tool(
        self, claims: Claims, request: tool_service_pb2.ExecuteRequest
    ) -> tuple[Tool | None, Arguments | Outcome]:
        """Returns the tool of a call, its own or this service's, with the arguments or the outcome without a run."""
        if request.HasField("own_tool"):
            definition = tool_to_domain(request.own_tool)
            if definition.effect_key is not None:
                check_own_effect_key(definition.effect_key)
            arguments = check_own_call(self._registry, claims, definition, request.arguments_json)
            return self._caller_runs.tool(definition), arguments
        arguments = self._registry.check_call(claims, request.tool, request.arguments_json)
        return self._registry.find(request.tool), arguments

    def _fenced(self, fencing: asyncio.Task[list[CallSummary]]) -> None:
        self._fencing.discard(fencing)
        if not fencing.cancelled() and (error := fencing.exception()) is not None:
            _log.debug("a fence was not raised", exc_info=error)  # the caller, if it still waits, gets the error

    def _check(self, token: token_pb2.FencingToken) -> tuple[Claims, UUID]:
        claims = self._tokens.check(token)
        try:
            return claims, UUID(claims.task_id)
        except ValueError as error:
            raise PermissionDenied(
                f"the fencing token is for {claims.resource!r}, which is not a task; present a task's token",
                reason="WRONG_RESOURCE",
            ) from error


def limit_of_output(request: tool_service_pb2.ExecuteRequest, tool: Tool | None) -> int:
    """Returns the smaller of the request's and the tool's output limits; 0: neither has one."""
    limits = [request.output_limit_bytes, tool.definition.output_limit_bytes if tool is not None else 0]
    return min((limit for limit in limits if limit), default=0)
