"""A refusal over HTTP names what the client sent: for each route, each of its fields alone, in every bad state."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, replace
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from types import SimpleNamespace, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from google.protobuf.message import Message

from services.gateway.http.api_route import ApiRoute
from services.gateway.http.operator_requests import QuotaBody, RuleBoundsBody, SeenToolBody, ToolRuleBody
from services.gateway.http.requests import (
    ActBody,
    ActKind,
    CallDecisionBody,
    CallPlanBody,
    SubmitBody,
    TaskFilterQuery,
    WebhookFilterBody,
)
from services.gateway.http.routes import ROUTES
from services.gateway.http.tasks import filter_of
from tenure.domain.errors import InvalidRequest
from tenure.domain.quotas import QuotaKind
from tenure.domain.task import InputFile, Source, SourceKind
from tenure.domain.tool_rules import RuleVerdict
from tenure.sdk.errors import named_arguments
from tenure.sdk.operations_info import READERS
from tenure.v1.task_pb2 import TaskFilter
from tenure.v1.webhook_service_pb2 import CreateWebhookRequest
from tenure.validators.rules import rule_of

LEFT_OUT = {
    "policy": "its own type, which the options of a submit have apart",
    "no_max_cost": "a flag of another field",
    "exclusive": "a flag of another field",
    "external": "a flag that chooses states",
    "agent": "its name is checked before it is sent",
    "function": "its input, null, is sent beside it",
}


class Sent(Exception):  # noqa: N818  the request, in place of an answer
    """The request that a handler made."""


class SendingCall:
    """Stands for an HttpCall whose first request is refused."""

    def __init__(self) -> None:
        self.stubs: Any = SimpleNamespace(unary=lambda *_: None, **{name: AnyMethod() for name in STUBS})
        self.request: Any = SimpleNamespace(headers={})
        self.request_id = "r-1"

    def path(self, name: str) -> str:
        return f"path of {name}"

    async def one(self, _method: Any, request: Message, **_options: Any) -> Any:
        raise Sent(request)

    async def many(self, _method: Any, request: Message) -> Any:
        nothing: tuple[Any, ...] = ()
        for answer in nothing:
            yield answer
        raise Sent(request)

    async def while_connected(self, work: Any) -> Any:
        return await work


STUBS = ("tasks", "admin", "leases", "schedules", "tenants", "webhooks", "audit", "agents")


class AnyMethod:
    def __getattr__(self, name: str) -> str:
        return name


def value_for(hint: Any) -> Any:
    """Returns a value of the type that is not the default of any field."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        return value_for(next(each for each in arguments if each is not type(None)))
    if origin is tuple:
        return (value_for(arguments[0]),)
    if origin in {Mapping, dict}:
        return {"k": value_for(arguments[1])}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return list(hint)[-1]
    if hint in VALUES:
        return VALUES[hint]
    plain = {str: "x", int: 77, bool: True, float: 7.5, Decimal: Decimal("0.5"), Any: {"a": 1}}
    return datetime(2030, 1, 1, tzinfo=UTC) if hint is datetime else plain[hint]


VALUES: dict[Any, Any] = {
    SubmitBody: SubmitBody(goal="go"),
    TaskFilterQuery: TaskFilterQuery(reason=("x",)),
    WebhookFilterBody: WebhookFilterBody(reason=("x",)),
    CallDecisionBody: CallDecisionBody(call_id="1.0", decision="allow"),
    CallPlanBody: CallPlanBody(count=7),
    InputFile: InputFile("x.txt", b"x"),
    Source: Source(SourceKind.MANUAL, "x"),
    SeenToolBody: SeenToolBody(name="x", sha256="0" * 64),
    RuleBoundsBody: RuleBoundsBody(count=7),
    ToolRuleBody: ToolRuleBody(name="x", tool="x", verdict=RuleVerdict.ASK),
    QuotaBody: QuotaBody(kind=QuotaKind.RUNNING_TASKS, limit=7),
}


def is_required(one: Field[Any]) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def leaves(message: Message, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the path and the value of each field that is set."""
    for field, value in message.ListFields():
        name = f"{path}{field.name}"
        if isinstance(value, Message) and not value.DESCRIPTOR.full_name.startswith("google.protobuf."):
            yield name, None
            yield from leaves(value, f"{name}.")
        else:
            yield name, str(value)


async def handled(route: ApiRoute, query: Any, body: Any) -> None:
    await route.handler(SendingCall(), query, body)


def request_of(route: ApiRoute, query: Mapping[str, Any], body: Mapping[str, Any]) -> Message:
    made_body = None if route.body is None else route.body(**body)
    with pytest.raises(Sent) as sent:
        asyncio.run(handled(route, route.query(**query), made_body))
    request = sent.value.args[0]
    assert isinstance(request, Message)
    return request


def parts(route: ApiRoute) -> Iterator[tuple[str, str, Any]]:
    """Yields where each field of a request is, its name and a value."""
    for place, kind in (("query", route.query), ("body", route.body)):
        if kind is not None:
            yield from parts_of(place, kind)


def parts_of(place: str, kind: type[Any]) -> Iterator[tuple[str, str, Any]]:
    hints = get_type_hints(kind)
    yield from ((place, one.name, value_for(hints[one.name])) for one in fields(kind) if one.name not in LEFT_OUT)


def required(kind: type[Any] | None) -> dict[str, Any]:
    if kind is None:
        return {}
    hints = get_type_hints(kind)
    return {one.name: value_for(hints[one.name]) for one in fields(kind) if is_required(one)}


CASES = [pytest.param(route, id=route.name) for route in ROUTES if route.name not in {"task_events", "task_changes"}]


@pytest.mark.parametrize("route", CASES)
def test_a_refusal_names_what_the_client_sent(route: ApiRoute, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_900_000_000.0)  # a default that follows the clock is not the client's
    base_body = required(route.body) | ({"goal": "go"} if route.body is SubmitBody else {})
    base_query = required(route.query)
    base = dict(leaves(request_of(route, base_query, base_body)))
    for place, name, value in parts(route):
        body = base_body | ({name: value} if place == "body" else {})
        query = base_query | ({name: value} if place == "query" else {})
        try:
            request = request_of(route, query, body)
        except InvalidRequest:  # of the handler itself, which knows the names: a field is needed beside this one
            continue
        for field, content in leaves(request):
            if base.get(field, "absent") != content and content is not None:
                with pytest.raises(InvalidRequest) as error, named_arguments(route.name_of):
                    raise InvalidRequest(violations=[(field, "must be otherwise")])
                named = error.value.violations[0].field
                assert named == name or named.startswith((f"{name}.", f"{name}["))


@pytest.mark.parametrize(
    ("name", "field", "named"),
    [
        ("create_schedule", "spec.limits.max_nano_usd", "task.max_cost"),
        ("create_schedule", "spec.goal", "task.goal"),
        ("create_schedule", "spec.control.function", "task.function"),
        ("update_schedule", "spec.labels['a']", "task.labels['a']"),
        ("update_schedule", "catch_up_window", "catch_up_seconds"),
        ("fork_task", "overrides.limits.timeout", "timeout"),
        ("answer_wait", "extra_budget_nano_usd", "extra_cost"),
        ("wait_for_task", "timeout", "timeout_seconds"),
        ("list_tasks", "filter.labels['a']", "label['a']"),
        ("list_tasks", "filter.reasons[0]", "reason[0]"),
        ("act_on_tasks", "filter.reasons[0]", "filter.reason[0]"),
        ("act_on_tasks", "filter.queue", "filter.queue"),
        ("list_entries", "page_size", "limit"),
        ("send_signal", "payload_json", "payload"),
        ("get_task", "task_id", "task_id"),
    ],
)
def test_known_names(name: str, field: str, named: str) -> None:
    (route,) = (each for each in ROUTES if each.name == name)
    assert route.name_of(field) == named


FILTER = WebhookFilterBody(
    reason=("BUDGET", "STUCK"),
    label={"team": "growth"},
    queue="slow",
    agent="support@7",
    source="scheduler/a%2Fb%25/2026-11-23/7",
    text="refund",
    since=datetime(2030, 1, 1, tzinfo=UTC),
    before=datetime(2030, 1, 2, tzinfo=UTC),
    ended_since=datetime(2030, 1, 3, tzinfo=UTC),
    ended_before=datetime(2030, 1, 4, tzinfo=UTC),
    model="m",
    min_cost=Decimal("0.5"),
    max_cost=Decimal("1.000000001"),
    min_duration=7.5,
    max_duration=90.0,
    task_id=("01a2137d-da29-7377-993a-f26b9ed5689e",),
    output_kind="pull_request",
    output_uri="https://example.com/",
    root_task_id="01a2137d-da29-7377-993a-f26b9ed5689f",
    forked_from_task_id="01a2137d-da29-7377-993a-f26b9ed568a0",
)
NO_FILTER = WebhookFilterBody()
SOURCE_OF_ANY_RUN = replace(NO_FILTER, source="scheduler/nightly")


@pytest.mark.parametrize("given", [FILTER, NO_FILTER, SOURCE_OF_ANY_RUN, replace(NO_FILTER, source="manual")])
def test_the_filter_of_a_webhook_is_shown_as_it_was_given(given: WebhookFilterBody) -> None:
    assert all(getattr(FILTER, one.name) != getattr(NO_FILTER, one.name) for one in fields(FILTER))
    shown = READERS[TaskFilter](filter_of(given))
    assert {one.name: getattr(shown, one.name) for one in fields(shown)} == {
        one.name: getattr(given, one.name) for one in fields(given)
    }


NOT_TAKEN = {
    **dict.fromkeys(
        (f"{verb}TasksRequest.filter.task_id_prefix" for verb in ("List", "Count", "ActOn", "Watch")),
        "ids in paths and parameters may be short",
    ),
    "GetReceiptsRequest.after_number": "the answer has all pages",
}
"""The fields of requests that no route of their method takes, with the reason."""


def requests_with_parts(route: ApiRoute) -> Iterator[Message]:
    """One request for each part that the route takes, and for each field of a filter in its body."""
    base_query, base_body = required(route.query), required(route.body)
    yield request_of(route, base_query, base_body)
    texts = [("query", "agent", "support@7"), ("query", "source", "scheduler/x")]
    of_filter = [*parts_of("query", TaskFilterQuery), *texts]
    if route.body is ActBody:
        more: list[tuple[str, str, Any]] = [
            ("body", "filter", TaskFilterQuery(**{name: value})) for _, name, value in of_filter
        ]
        more += [("body", "act", kind) for kind in ActKind]
    else:
        kinds = {"query": route.query, "body": route.body}
        more = [(place, "agent", "support") for place, kind in kinds.items() if hasattr(kind, "agent")]
        more += of_filter if issubclass(route.query, TaskFilterQuery) else []
    for place, name, value in [*parts(route), *more]:
        query = base_query | ({name: value} if place == "query" else {})
        body = base_body | ({name: value} if place == "body" else {})
        try:
            yield request_of(route, query, body)
        except InvalidRequest:  # it needs another part beside it
            continue


def fields_of_method(message: Message) -> Iterator[str]:
    """Yields the fields that a client sets, of a filter each one."""
    descriptor: Any = message.DESCRIPTOR
    for field in descriptor.fields:
        rule = rule_of(field)
        if field.name == "filter" and not isinstance(message, CreateWebhookRequest):  # which takes a part of it
            yield from (f"filter.{name}" for name in field.message_type.fields_by_name)
        elif rule is None or not rule.by_gateway:
            yield field.name


def test_each_field_of_a_routed_method_is_taken() -> None:
    """Or it is in the list, with the reason: HTTP does not become smaller than the contract by an oversight."""
    taken, wanted = defaultdict[str, set[str]](set), dict[str, set[str]]()
    for route in ROUTES:
        if route.name == "task_events":
            continue
        for request in requests_with_parts(route):
            method = type(request).__name__
            wanted[method] = set(fields_of_method(request))
            for path, _ in leaves(request):
                taken[method] |= {".".join(path.split(".")[:length]) for length in (1, 2)}
    missing = {f"{method}.{name}" for method, names in wanted.items() for name in names - taken[method]}
    assert missing == set(NOT_TAKEN)
