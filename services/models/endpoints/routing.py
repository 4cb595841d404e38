"""Sends calls to endpoints: a call waits for the rate limit of a key, and moves to the next endpoint if it is refused.

The rules are those of services.models.failover and tenure.domain.rate_limits.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Final, NamedTuple, Self

from services.models.admission import LimitedCall
from services.models.endpoints.settings import EndpointSettings
from services.models.failover import TRY_SECONDS, Circuit, RankedEndpoint, WarmCaches, may_move, preferred_order
from services.models.limits.key_queue import KeyFlight, KeyQueue, LineCaller
from tenure.domain.budget import TokenUsage
from tenure.domain.models import vendor_of
from tenure.domain.rate_limits import CallSize
from tenure.domain.retry import FailureClass
from tenure.domain.texts import estimated_tokens
from tenure.model_providers.client import ModelAnswer, ModelCall, ModelCallFailed, ModelClient, ModelRequest
from tenure.model_providers.stream import shown
from tenure.runtime.observability import metrics

_log: Final = logging.getLogger(__name__)

MAX_KEY_QUEUES: Final = 1000
"""The number of models, over all endpoints, whose limits are kept: clients choose the name of a model."""
PATIENT_SECONDS: Final = 30.0
"""A call whose own timeout is shorter says nothing about its endpoint: one tenant's haste must not close it to all."""
NO_ENDPOINT: Final = (
    "this model runner has no endpoint for the model {model}: set {vendor}_API_KEY or {vendor}_BASE_URL for the model "
    "runner, list the model in TENURE_MODELS_ENDPOINTS_FILE, or give the task a model of another provider"
)


class ModelEndpoint:
    """An open endpoint."""

    def __init__(self, settings: EndpointSettings, client: ModelClient) -> None:
        self.settings, self.client = settings, client

    @property
    def name(self) -> str:
        """The name in metrics and logs."""
        return self.settings.name

    def own_name(self, model: str) -> str | None:
        """Returns the endpoint's name of a model, with the prefix of its vendor; None: it does not have the model."""
        vendor, name = vendor_of(model)
        own = self.settings.model(name) if vendor == self.settings.vendor else None
        return None if own is None else f"{vendor}/{own}"


class _Route(NamedTuple):
    """An endpoint for a call: its name of the model, the calls that wait for its key, and the circuit of this model.

    A model that fails says nothing about the others: any task may name one.
    """

    endpoint: ModelEndpoint
    model: str
    queue: KeyQueue
    circuit: Circuit


class _Line(NamedTuple):
    """The calls that wait for one model at one endpoint, and its circuit."""

    queue: KeyQueue
    circuit: Circuit


class ModelEndpoints:
    """All endpoints of a process, with the calls that wait for them.

    `longest_wait_seconds`: how long a call waits for the rate limit of an endpoint before it looks for another one.
    """

    def __init__(self, endpoints: Sequence[ModelEndpoint], *, longest_wait_seconds: float) -> None:
        self._endpoints = list(endpoints)
        self._longest_wait_seconds = longest_wait_seconds
        self._lines: OrderedDict[tuple[str, str], _Line] = OrderedDict()
        self._warm = WarmCaches()
        self._replicas = 1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for endpoint in self._endpoints:
            await endpoint.client.__aexit__()

    def share_with(self, replicas: int) -> None:
        """Takes the number of processes that use the same keys."""
        self._replicas = max(1, replicas)
        for line in self._lines.values():
            line.queue.limiter.replicas = self._replicas

    def admit_now(self, call: LimitedCall) -> EndpointPermit | None:
        """Returns a permit if the call need not wait."""
        for route in self._routes(call):
            if route.circuit.wait_seconds(monotonic(), call.tenant):
                continue
            if (flight := route.queue.take_now(_caller(call), _size(call))) is not None:
                return EndpointPermit(self, call, route, flight)
            if route.queue.expected_wait_seconds(_size(call)) <= self._longest_wait_seconds:
                return None
        return None

    async def admit(self, call: LimitedCall) -> EndpointPermit:
        """Waits for a permit. A cancelled wait takes none.

        Raises ModelCallFailed if no endpoint has the model, and if calls avoid all that have it.
        """
        return await self._admit(call, frozenset())

    async def _admit(self, call: LimitedCall, refused_by: frozenset[str]) -> EndpointPermit:
        """Waits at the best endpoint, and looks for a free one from time to time."""
        route = self._best(call, refused_by)
        waiting = route.queue.enqueue(_caller(call), _size(call))
        try:
            while not waiting.went.done():
                await asyncio.wait({waiting.went}, timeout=self._longest_wait_seconds)
                free = None if waiting.went.done() else self._free_one(call, refused_by | {route.endpoint.name})
                if free is not None:
                    _log.info("a call left a rate limit", extra={"task": call.task_id, "endpoint": free.name})
                    return free
            flight = waiting.take()
            if route.circuit.wait_seconds(monotonic(), call.tenant):  # it opened meanwhile
                flight.end(None)
                raise _avoided([route], call.tenant)
            return EndpointPermit(self, call, route, flight)
        finally:
            route.queue.leave(waiting)
            seconds = monotonic() - waiting.since
            metrics.observe("tenure_models_rate_limit_wait_seconds", seconds, endpoint=route.endpoint.name)

    def _free_one(self, call: LimitedCall, without: frozenset[str]) -> EndpointPermit | None:
        for route in self._routes(call):
            if route.endpoint.name in without or route.circuit.wait_seconds(monotonic(), call.tenant):
                continue
            if (flight := route.queue.take_now(_caller(call), _size(call))) is not None:
                return EndpointPermit(self, call, route, flight)
        return None

    def _best(self, call: LimitedCall, refused_by: frozenset[str]) -> _Route:
        """Returns the first endpoint that works without a long wait, or the one with the shortest wait."""
        routes = [route for route in self._routes(call) if route.endpoint.name not in refused_by]
        if not routes:
            vendor, _ = vendor_of(call.model)
            text = NO_ENDPOINT.format(model=shown(call.model), vendor=vendor.upper())
            raise ModelCallFailed(FailureClass.NOT_FOUND, text)
        closed = [route for route in routes if not route.circuit.wait_seconds(monotonic(), call.tenant)]
        if not closed:
            raise _avoided(routes, call.tenant)
        waits = [(route.queue.expected_wait_seconds(_size(call)), index) for index, route in enumerate(closed)]
        short = next((index for wait, index in waits if wait <= self._longest_wait_seconds), None)
        return closed[min(waits)[1] if short is None else short]

    def has_another(self, call: LimitedCall, refused_by: frozenset[str]) -> bool:
        """Whether another endpoint works, has no long line and has not refused the call."""
        return any(
            route.endpoint.name not in refused_by
            and not route.circuit.wait_seconds(monotonic(), call.tenant)
            and route.queue.expected_wait_seconds(_size(call)) <= self._longest_wait_seconds
            for route in self._routes(call)
        )

    async def move(self, call: LimitedCall, refused_by: frozenset[str]) -> EndpointPermit:
        """Waits for a permit of an endpoint that has not refused the call. Raises TimeoutError after the longest wait.

        A call that was SENT cannot be taken over, so it must not wait as one that was not.
        """
        async with asyncio.timeout(self._longest_wait_seconds):
            return await self._admit(call, refused_by)

    def keep(self, call: LimitedCall, endpoint: str) -> None:
        """Remembers that the prompt of the task is cached there."""
        self._warm.keep(monotonic(), call.task_id, endpoint)

    def _routes(self, call: LimitedCall) -> Iterator[_Route]:
        """Yields the endpoints that have the model, in the order in which the task prefers them."""
        named = {endpoint.name: (endpoint, endpoint.own_name(call.model)) for endpoint in self._endpoints}
        ranked = [
            RankedEndpoint(endpoint.settings.rank, endpoint.name)
            for endpoint, model in named.values()
            if model is not None
        ]
        for name in self._warm.order(monotonic(), call.task_id, preferred_order(call.task_id, ranked)):
            endpoint, model = named[name]
            assert model is not None, "only endpoints with the model are ranked"
            yield _Route(endpoint, model, *self._line(name, model))

    def _line(self, endpoint: str, model: str) -> _Line:
        line = self._lines.get((endpoint, model))
        if line is None:
            line = self._lines[endpoint, model] = _Line(KeyQueue(), Circuit())
            line.queue.limiter.replicas = self._replicas
            for key, other in list(self._lines.items()):
                if len(self._lines) <= MAX_KEY_QUEUES:
                    break
                if other.queue.is_idle and other is not line:
                    del self._lines[key]
        else:
            self._lines.move_to_end((endpoint, model))
        return line

    async def count(self, request: ModelRequest) -> int | None:
        """Returns the count of a prompt from the first endpoint that has the model, or None."""
        for endpoint in sorted(self._endpoints, key=lambda endpoint: endpoint.settings.rank):
            model = endpoint.own_name(request.model)
            if model is not None and not self._line(endpoint.name, model).circuit.is_open:
                return await endpoint.client.count(replace(request, model=model))
        return None

    def waiting_by_endpoint(self) -> Mapping[str, int]:
        """Returns the number of calls that wait for the rate limit of each endpoint."""
        counts = {endpoint.name: 0 for endpoint in self._endpoints}
        for (name, _), line in self._lines.items():
            counts[name] += line.queue.waiting
        return counts

    def open_circuits(self) -> Mapping[str, bool]:
        """Returns for each endpoint whether the circuit of one of its models is open."""
        opened = {name for (name, _), line in self._lines.items() if line.circuit.is_open}
        return {endpoint.name: endpoint.name in opened for endpoint in self._endpoints}


class EndpointPermit:
    """The permission to send one call, to one endpoint at first.

    It may be the try of an endpoint whose circuit is open: no other call is admitted until its circuit learns the end.
    `is_moving`: it was refused, and waits for another endpoint.
    """

    def __init__(self, endpoints: ModelEndpoints, call: LimitedCall, route: _Route, flight: KeyFlight) -> None:
        self._endpoints, self._call, self._route, self._flight = endpoints, call, route, flight
        self._is_try = route.circuit.begin(monotonic(), call.tenant)
        self.is_moving = False

    @property
    def name(self) -> str:
        """The name of the endpoint."""
        return self._route.endpoint.name

    async def answer(self, request: ModelRequest, call: ModelCall) -> ModelAnswer:
        """Sends the call, and returns the answer of the first endpoint that takes it. Raises ModelCallFailed.

        It asks `call.may_go_on` before it waits for another endpoint, and before it sends the call there.
        """
        refused_by: frozenset[str] = frozenset()
        while True:
            try:
                return await self._answer(request, call)
            except ModelCallFailed as failure:
                refused_by |= {self.name}
                error_class, status = failure.error_class, failure.status_code
                moves = may_move(error_class, status, was_sent=failure.was_sent, was_taken=call.was_taken)
                if not moves or not self._endpoints.has_another(self._call, refused_by):
                    raise
                refused = self.name
                self._give_back(failure)
                call.check_may_go_on()
                self.is_moving = True
                try:
                    other = await self._endpoints.move(self._call, refused_by)
                except TimeoutError:
                    raise failure from None
                finally:
                    self.is_moving = False
                self._route, self._flight = other._route, other._flight  # noqa: SLF001  a permit like this one
                self._is_try = other._is_try  # noqa: SLF001
                call.check_may_go_on()
                metrics.count("tenure_models_failovers_total", endpoint=refused, error_class=failure.error_class.value)
                _log.warning(
                    "a call moved to another endpoint",
                    extra={
                        "attempt": request.attempt,
                        "endpoint": self.name,
                        "refused_by": refused,
                        "why": str(failure),
                    },
                )

    async def _answer(self, request: ModelRequest, call: ModelCall) -> ModelAnswer:
        """Asks one endpoint. Its circuit learns of the outcome when the response begins, or by the failure."""
        flight, began = self._flight, monotonic()
        is_open_question = True

        def hear(status: int, headers: Mapping[str, str]) -> None:
            nonlocal is_open_question
            flight.hear(status, headers)
            if call.was_taken and is_open_question:
                is_open_question = False
                self._tell_circuit(None)

        call.on_headers = hear
        error_class: FailureClass | None = FailureClass.INTERRUPTED
        try:
            answer = await self._route.endpoint.client.answer(replace(request, model=self._route.model), call)
            error_class = None
        except ModelCallFailed as failure:
            error_class = failure.error_class
            raise
        finally:
            if is_open_question:
                is_hasty = 0 < request.timeout_seconds < min(PATIENT_SECONDS, monotonic() - began)
                self._tell_circuit(FailureClass.INTERRUPTED if is_hasty else error_class)
            self._count(error_class, call.usage)
        self._endpoints.keep(self._call, self.name)
        return answer

    def _tell_circuit(self, error_class: FailureClass | None) -> None:
        """Tells the circuit what became of the call. None: the endpoint accepted it."""
        is_try, self._is_try = self._is_try, False
        call = self._call
        self._route.circuit.end(monotonic(), error_class, task_id=call.task_id, tenant=call.tenant, is_try=is_try)

    def _count(self, error_class: FailureClass | None, usage: TokenUsage) -> None:
        outcome = "ANSWERED" if error_class is None else error_class.value
        metrics.count("tenure_models_endpoint_calls_total", endpoint=self.name, outcome=outcome)
        for kind, tokens in (
            ("uncached", usage.input_tokens + usage.cache_creation_input_tokens),
            ("cached", usage.cache_read_input_tokens),
        ):
            metrics.count("tenure_models_input_tokens_total", tokens, endpoint=self.name, kind=kind)

    def _give_back(self, failure: ModelCallFailed | None) -> None:
        if failure is not None and failure.error_class is FailureClass.RATE_LIMITED:
            self._flight.refuse(failure.retry_after_seconds)
        else:
            self._flight.end(None)

    def close(self, usage: TokenUsage, failure: ModelCallFailed | None) -> None:
        """Takes what the call used and how it failed. Repeatable."""
        if self._is_try:  # it was never sent
            self._tell_circuit(FailureClass.INTERRUPTED)
        if failure is not None and failure.error_class is FailureClass.RATE_LIMITED and not usage.total:
            self._flight.refuse(failure.retry_after_seconds)
        else:
            self._flight.end(usage if usage.total else None)


def _avoided(routes: Sequence[_Route], tenant: str) -> ModelCallFailed:
    """Returns the failure of a call that is not sent: one call tries an endpoint for all of them.

    Its wait is random beyond the pause, so that not all calls come back in the same moment.
    """
    now = monotonic()
    route = min(routes, key=lambda route: route.circuit.wait_seconds(now, tenant))
    wait_seconds = route.circuit.wait_seconds(now, tenant)
    again = "a call tries it just now" if math.isinf(wait_seconds) else f"a call tries it in {wait_seconds:.0f} s"
    # a timeout would be one of this call, for which its task has a rule
    fault = FailureClass.CONNECTION if route.circuit.fault is FailureClass.TIMEOUT else route.circuit.fault
    failure = ModelCallFailed(
        fault,
        f"calls of several tasks to the endpoint {route.endpoint.name} failed, so no call is sent to it; {again}",
        retry_after_seconds=(TRY_SECONDS if math.isinf(wait_seconds) else wait_seconds) * random.uniform(1.0, 1.5),
    )
    failure.was_sent = False
    return failure


def _caller(call: LimitedCall) -> LineCaller:
    return LineCaller(call.tenant, call.priority, call.is_new)


def _size(call: LimitedCall) -> CallSize:
    return CallSize(
        estimated_tokens(call.input_bytes - call.image_bytes),
        call.max_output_tokens,
        is_repeated=not call.is_new,
    )
