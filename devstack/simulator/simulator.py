"""The simulator: its routes, and the control interface for tests while it runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jsonschema

from devstack.search_stub import answer_search
from devstack.simulator.call_log import CallLog
from devstack.simulator.chat_endpoint import ChatEndpoint
from devstack.simulator.delivery import RawAnswer
from devstack.simulator.http_server import HttpRequest, HttpServer, Reply, error_body, error_value, new_request_id
from devstack.simulator.messages_endpoint import MessagesEndpoint
from devstack.simulator.rate_limits import RateLimiter, RateLimits
from devstack.simulator.responses_endpoint import ResponsesEndpoint
from devstack.simulator.scenario import (
    FAULT_REQUEST_SCHEMA,
    Faults,
    ScenarioError,
    ScenarioLibrary,
    TooManyFaults,
    TooManyScenarios,
    fault_from,
    model_of,
    scenario_of,
)
from devstack.simulator.tokens import PromptCache

MAX_BODY_BYTES = 32 * 1024 * 1024
LISTED_CALLS = 1000
MAX_ANSWERS = 1000


class ModelSimulator:
    """A running simulator: `async with ModelSimulator() as simulator: AsyncAnthropic(base_url=simulator.url)`.

    `scenarios`: directories with further scenario files; `scenario_files`: single files. `latency_ms`: the latency of
    turns without their own. `counts_tokens`: whether it serves /v1/messages/count_tokens, which not every endpoint has.
    `rate_limits`: those of each key and model.
    """

    messages_kind = MessagesEndpoint
    chat_kind = ChatEndpoint

    def __init__(
        self,
        *,
        scenarios: Sequence[Path] = (),
        scenario_files: Sequence[Path] = (),
        log_path: Path | None = None,
        latency_ms: int = 0,
        counts_tokens: bool = True,
        rate_limits: RateLimits | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        """Raises ScenarioError for an invalid scenario file, and OSError for a log that cannot be written."""
        library = ScenarioLibrary(scenarios, scenario_files)
        self.log = CallLog(log_path)
        self.faults = Faults()
        self.cache = PromptCache()
        self.rate = RateLimiter(rate_limits or RateLimits())
        self._rate_limits = self.rate.limits
        self.library = library
        self._messages = self.messages_kind(library, self.log, self.faults, self.cache, latency_ms, self.rate)
        self._chat = self.chat_kind(
            library,
            self.log,
            self.faults,
            self.cache,
            latency_ms,
            self.rate,
            raw_answers=self._messages.raw_answers,
        )
        self._responses = ResponsesEndpoint(library, self.log, self.faults, self.cache, latency_ms, self.rate)
        self._server = HttpServer(self._handle, max_body_bytes=MAX_BODY_BYTES, refusal=error_body)
        self._address = (host, port)
        counting = {("POST", "/v1/messages/count_tokens"): self._messages.count_tokens}
        self._routes = {
            **(counting if counts_tokens else {}),
            ("POST", "/v1/messages"): self._messages.create,
            ("POST", "/v1/chat/completions"): self._chat.create,
            ("POST", "/v1/responses"): self._responses.create,
            ("GET", "/search"): answer_search,
            ("GET", "/_sim/calls"): self._list_calls,
            ("GET", "/_sim/running"): self._list_running,
            ("POST", "/_sim/faults"): self._order_fault,
            ("POST", "/_sim/answers"): self._order_answer,
            ("POST", "/_sim/limits"): self._set_limits,
            ("POST", "/_sim/scenarios"): self._put_scenario,
            ("POST", "/_sim/reset"): self._reset,
        }

    @property
    def url(self) -> str:
        return f"http://{self._address[0]}:{self._server.port}"

    def answer_next(self, answer: RawAnswer) -> None:
        """Answers the next streamed request with this answer."""
        self._messages.raw_answers.append(answer)

    async def start(self) -> Self:
        """Listens. Raises OSError if the address is taken."""
        await self._server.start(*self._address)
        return self

    async def stop(self) -> None:
        """Cuts running answers, which are logged as abandoned, and closes the log."""
        await self._server.stop()
        self.log.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.stop()

    async def _handle(self, request: HttpRequest, reply: Reply) -> None:
        route = self._routes.get((request.method, request.path))
        if route is None:
            message = f"this server has no {request.method} {request.path}"
            reply.send_json(404, error_value(404, message, new_request_id()))
            return
        await route(request, reply)

    async def _list_calls(self, request: HttpRequest, reply: Reply) -> None:
        """Sends the last calls, the oldest first, and the sums of all calls since the last reset."""
        limit = request.query.get("limit", str(LISTED_CALLS))
        if not limit.isdigit():
            reply.send_json(400, {"error": "limit is not a number"})
            return
        calls = list(self.log.calls)
        value = {"calls": calls[max(0, len(calls) - int(limit)) :], "count": self.log.count, "billed": self.log.billed}
        reply.send_json(200, value)

    async def _list_running(self, _request: HttpRequest, reply: Reply) -> None:
        """Sends the running calls with their bills so far."""
        reply.send_json(200, {"calls": self.log.running()})

    async def _order_fault(self, request: HttpRequest, reply: Reply) -> None:
        try:
            value: Any = json.loads(request.body)
            jsonschema.validate(value, FAULT_REQUEST_SCHEMA)
            target = {"endpoint": value.get("endpoint", "messages"), "model": value.get("model")}
            self.faults.order(fault_from(value, None), count=value.get("count", 1), **target)
        except (ValueError, TooManyFaults) as error:
            reply.send_json(400, {"error": str(error)})
        except jsonschema.ValidationError as error:
            reply.send_json(400, {"error": error.message})
        else:
            reply.send_json(200, {})

    async def _order_answer(self, request: HttpRequest, reply: Reply) -> None:
        """Takes the body of the request as the stream of the next `count` answers, byte for byte."""
        count = request.query.get("count", "1")
        if not count.isdecimal() or not 1 <= int(count) <= MAX_ANSWERS:
            reply.send_json(400, {"error": f"count must be 1 to {MAX_ANSWERS}"})
            return
        for _ in range(int(count)):
            self.answer_next(RawAnswer(request.body, changes=["ordered"]))
        reply.send_json(200, {})

    async def _set_limits(self, request: HttpRequest, reply: Reply) -> None:
        """Replaces the rate limits until the next reset, and fills all buckets."""
        try:
            self.rate.set(RateLimits.of(json.loads(request.body)))
        except ValueError as error:
            reply.send_json(400, {"error": str(error)})
        else:
            reply.send_json(200, {})

    async def _put_scenario(self, request: HttpRequest, reply: Reply) -> None:
        """Adds the scenario that the body describes, as JSON, under the name in the query, or replaces it.

        It is there until the next reset. With `instructions` in the query: for agents whose instructions contain this
        text.
        """
        try:
            path = Path(request.query.get("name", ""))
            model_of(path)
            scenario = scenario_of(path, json.loads(request.body))
            if instructions := request.query.get("instructions"):
                self.library.put_for_instructions(instructions, scenario)
            else:
                self.library.put(scenario)
        except (ValueError, ScenarioError, TooManyScenarios) as error:
            reply.send_json(400, {"error": str(error)})
        else:
            reply.send_json(200, {})

    async def _reset(self, _request: HttpRequest, reply: Reply) -> None:
        """Deletes faults, ordered answers, calls, cached prefixes and added scenarios. Keeps the log file."""
        self._messages.raw_answers.clear()
        self.library.forget_added()
        self.faults.clear()
        self.log.clear()
        self.cache.clear()
        self.rate.set(self._rate_limits)
        reply.send_json(200, {})
