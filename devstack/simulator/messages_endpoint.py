"""POST /v1/messages and /v1/messages/count_tokens: answers a request, or fails as a fault demands."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from devstack.simulator.call_log import CallLog, SimulatedCall
from devstack.simulator.delivery import MESSAGES, Dialect, RawAnswer, ReplyDelivery, compose, deliver, deliver_raw
from devstack.simulator.http_server import ApiError, HttpRequest, Reply, request_ids
from devstack.simulator.own_tools import OwnToolsScenario
from devstack.simulator.rate_limits import RateLimiter
from devstack.simulator.request_checks import check_count, check_create
from devstack.simulator.scenario import PREFIX, Fault, FaultKind, Faults, Scenario, ScenarioLibrary, Turn
from devstack.simulator.templates import is_summary_wanted, summary_text, text_of, turn_of
from devstack.simulator.tokens import InputTokens, PromptCache, count_request, prompt_hash
from devstack.simulator.tool_checks import ToolCheck, anthropic_refusal
from tenure.domain.tool_arguments import strict_json

REFUSED_KEY = "sk-invalid"
PREFILL_REFUSED = (
    "This model does not support assistant message prefill. The conversation must end with a user message."
)


@dataclass
class MessagesEndpoint:
    """The two endpoints, with the scenarios, the log, the faults and the prompt cache.

    `name`: the endpoint in the log.
    """

    library: ScenarioLibrary
    log: CallLog
    faults: Faults
    cache: PromptCache
    latency_ms: int = 0
    rate: RateLimiter = field(default_factory=RateLimiter)
    name: str = "messages"
    dialect: Dialect = MESSAGES
    check_tool: ToolCheck = anthropic_refusal
    raw_answers: deque[RawAnswer] = field(default_factory=deque)

    async def create(self, request: HttpRequest, reply: Reply) -> None:
        """Serves POST /v1/messages."""
        call = self._begin(self.name, request)
        try:
            delivery = self._prepare(request, call)
            raw = self.raw_answer(call, delivery) if call.stream else None
            if raw is not None:
                await deliver_raw(raw, call, self.log, reply)
            else:
                await deliver(delivery, call, self.log, reply)
        except ApiError as error:
            self._refuse(error, call, reply)
        finally:
            self.log.finish(call)
            self.rate.write(request, call.model or "", call.output_tokens)

    async def count_tokens(self, request: HttpRequest, reply: Reply) -> None:
        """Serves POST /v1/messages/count_tokens, which costs nothing."""
        call = self._begin("count_tokens", request)
        try:
            body = check_count(self.read(request))
            call.model = body["model"]
            self.find_scenario(body)
            _raise_status(self.faults.next_ordered("count_tokens", body["model"]))
            tokens = count_request(body)
            call.status, call.ending, call.answered = 200, "complete", True
            reply.send_json(200, {"input_tokens": tokens}, request_ids(call.request_id))
        except ApiError as error:
            self._refuse(error, call, reply)
        finally:
            self.log.finish(call)

    def raw_answer(self, call: SimulatedCall, delivery: ReplyDelivery) -> RawAnswer | None:  # noqa: ARG002
        """Returns the response instead of this answer, byte for byte, if one was ordered."""
        return self.raw_answers.popleft() if self.raw_answers else None

    def _begin(self, endpoint: str, request: HttpRequest) -> SimulatedCall:
        retry_count = request.headers.get("x-stainless-retry-count")
        call = SimulatedCall(endpoint, retry_count=retry_count, attempt=request.headers.get("x-tenure-attempt"))
        self.log.begin(call)
        return call

    def _prepare(self, request: HttpRequest, call: SimulatedCall) -> ReplyDelivery:
        """Composes the answer. Raises ApiError for a refused request, before any token is billed."""
        body = check_create(self.read(request), self.check_tool)
        call.model, call.stream = body["model"], body.get("stream", False)
        call.user_id = (body.get("metadata") or {}).get("user_id")
        scenario = self.find_scenario(body)
        call.prompt_hash = prompt_hash(body)
        window_left = _window_left(scenario, body)
        call.turn = turn_of(body["messages"])
        turn = _turn(scenario, call.turn, body)
        _check_ending(scenario, call.turn, body)
        fault = self._next_fault(turn, body)
        call.fault = fault.kind.value if fault is not None else None
        _raise_status(fault)
        if fault is not None and fault.kind is FaultKind.OVERLOADED and not call.stream:
            raise ApiError(529, fault.message)
        headers = self.rate.admit(request, body["model"], self._uncached_tokens(turn, body))
        return ReplyDelivery(
            compose(turn, body, window_left),
            self._price(turn, body),
            turn.deltas,
            self._latency_ms(turn, fault),
            fault,
            self.dialect,
            turn.first_token_ms,
            headers,
        )

    def read(self, request: HttpRequest) -> Any:
        """Returns the body of a request as one of the Messages API, unchecked. Raises ApiError."""
        _check_headers(request.headers)
        return parsed_body(request)

    def priced(self, body: Mapping[str, Any], *, caches: bool = True) -> InputTokens:
        """Returns the input tokens of a valid request, and caches its prefixes."""
        return self.cache.price(body, caches=caches)

    def find_scenario(self, body: Mapping[str, Any]) -> Scenario:
        """Returns the scenario that a request plays. Raises ApiError."""
        goal, instructions = text_of(body["messages"][0]["content"]), text_of(body.get("system"))
        tools = body.get("tools") or ()
        scenario = self.library.find(body["model"], goal, instructions, [tool["name"] for tool in tools])
        if scenario is None and not body["model"].startswith(PREFIX):
            return OwnToolsScenario(goal, tools, _output_schema(body))
        if scenario is None:
            raise ApiError(404, f"model: {body['model']}")
        return scenario

    def _price(self, turn: Turn, body: Mapping[str, Any]) -> InputTokens:
        return self.priced(body) if turn.input_tokens is None else InputTokens(turn.input_tokens)

    def _uncached_tokens(self, turn: Turn, body: Mapping[str, Any]) -> int:
        """Returns the input that counts against a limit, and caches nothing: the request may be refused."""
        if turn.input_tokens is not None or not self.rate.limits.by_name():
            return turn.input_tokens or 0
        tokens = self.priced(body, caches=False)
        return tokens.plain + tokens.cache_creation

    def _next_fault(self, turn: Turn, body: Mapping[str, Any]) -> Fault | None:
        return self.faults.next_ordered("messages", body["model"]) or self.faults.next_written(turn.fault, body)

    def _latency_ms(self, turn: Turn, fault: Fault | None) -> int:
        if fault is not None and fault.kind is FaultKind.LATENCY:
            return fault.value
        return self.latency_ms if turn.latency_ms is None else turn.latency_ms

    def _refuse(self, error: ApiError, call: SimulatedCall, reply: Reply) -> None:
        call.status, call.ending, call.error = error.status, "refused", error.message
        self.log.finish(call)
        value = self.dialect.error_value(error.status, error.message, call.request_id)
        reply.send_json(error.status, value, {**request_ids(call.request_id), **error.headers})


def _output_schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    match body.get("output_config"):
        case {"format": {"type": "json_schema", "schema": dict(schema)}}:
            return schema
    return None


def _window_left(scenario: Scenario, body: Mapping[str, Any]) -> int | None:
    """Returns the tokens that the prompt leaves in the context window, or None without a window."""
    if scenario.window_tokens is None:
        return None
    tokens = count_request(body)
    if tokens > scenario.window_tokens:
        raise ApiError(400, f"prompt is too long: {tokens} tokens > {scenario.window_tokens} maximum")
    return scenario.window_tokens - tokens


def _turn(scenario: Scenario, index: int, body: Mapping[str, Any]) -> Turn:
    if not is_summary_wanted(body):
        return scenario.turn(index)
    return replace(scenario.summary, text=summary_text(scenario.summary.text, body["messages"]))


def parsed_body(request: HttpRequest) -> Any:
    """Returns the JSON of a request. Raises ApiError."""
    try:
        value = strict_json(request.body.decode())
        if b"\\ud" in request.body.lower():  # Python's parser accepts half a surrogate pair, the provider's does not
            json.dumps(value, ensure_ascii=False).encode()
    except ValueError as error:
        raise ApiError(400, f"The request body is not valid JSON: {error}") from error
    return value


def _check_headers(headers: Mapping[str, str]) -> None:
    key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
    if not key:
        raise ApiError(401, "x-api-key header is required")
    if key == REFUSED_KEY:
        raise ApiError(401)
    if "anthropic-version" not in headers:
        raise ApiError(400, "anthropic-version: header is required")


def _raise_status(fault: Fault | None) -> None:
    if fault is not None and fault.kind is FaultKind.STATUS:
        wait = fault.retry_after_seconds
        raise ApiError(fault.value, fault.message, {} if wait is None else {"retry-after": f"{wait:g}"})


def _check_ending(scenario: Scenario, turn: int, body: Mapping[str, Any]) -> None:
    """Raises ApiError for a last message of the assistant, unless it is a paused turn that shall continue."""
    if body["messages"][-1]["role"] == "assistant" and scenario.turn(turn - 1).stop_reason != "pause_turn":
        raise ApiError(400, PREFILL_REFUSED)
