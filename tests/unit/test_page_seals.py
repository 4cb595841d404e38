"""Page tokens of clients belong to one list: to its method, its filter and its order."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from google.protobuf import descriptor_pool, message_factory
from starlette.datastructures import QueryParams

from edges.a2a.listing import TaskListQuery, _Position, _seal, _token
from services.gateway.client_fields import set_own_fields
from services.gateway.page_tokens import SealedPages, validate_page
from tenure.domain.errors import InvalidRequest
from tenure.v1 import admin_service_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1.admin_service_pb2_grpc import AdminServiceServicer

CLIENT_SERVICES = [
    f"tenure.v1.{name}Service"
    for name in (*("Task", "Admin", "Lease", "Schedule", "Tenant", "Webhook", "ApiKey", "Agent", "Approval", "Audit"),)
]


def paged() -> list[tuple[str, Any]]:
    """Each list of the gateway, with its service."""
    pool = descriptor_pool.Default()
    return [
        (service, method)
        for service in CLIENT_SERVICES
        for method in pool.FindServiceByName(service).methods
        if "page_token" in method.input_type.fields_by_name
    ]


PAGED = paged()


def message(kind: Any, **fields: Any) -> Any:
    return message_factory.GetMessageClass(kind)(**fields)


async def sealed(service: str, method: Any, request: Any) -> str:
    """The token that a client gets for the position `x`."""

    async def handler(_request: Any, _context: Any) -> Any:
        return message(method.output_type, next_page_token="x")

    set_own_fields(request)
    pages = SealedPages(Mock(**{method.name: handler}), service)
    return str((await getattr(pages, method.name)(request, None)).next_page_token)


def read(request: Any) -> str:
    """The token that the service behind the gateway gets. What else is wrong with the request does not count here."""
    try:
        validate_page(request, request.ByteSize())
    except InvalidRequest as error:
        if error.reason == "OTHER_LIST":
            raise
    return str(request.page_token)


@pytest.mark.parametrize(("service", "method"), PAGED, ids=[method.full_name for _, method in PAGED])
async def test_a_token_is_valid_for_its_list_only(service: str, method: Any) -> None:
    token = await sealed(service, method, message(method.input_type))
    sizes = {"page_size": 7} if "page_size" in method.input_type.fields_by_name else {}
    assert read(message(method.input_type, page_token=token, **sizes)) == "x"
    for _, other in PAGED:
        if other is not method:
            with pytest.raises(InvalidRequest, match="page_token"):
                read(message(other.input_type, page_token=token))
    for wrong in ("x", token[:-2], "nonsense"):
        with pytest.raises(InvalidRequest, match="page_token"):
            read(message(method.input_type, page_token=wrong))


def test_all_lists_are_covered() -> None:
    assert len(PAGED) >= 14


async def test_a_token_is_valid_for_its_filter_and_order_only() -> None:
    (list_tasks,) = [method for _, method in PAGED if method.name == "ListTasks"]
    wanted = task_pb2.TaskFilter(labels={"b": "1", "a": "2"}, states=[task_pb2.TASK_STATE_QUEUED])
    token = await sealed("tenure.v1.TaskService", list_tasks, api.ListTasksRequest(filter=wanted, page_size=1))
    same = task_pb2.TaskFilter(labels={"a": "2", "b": "1"}, states=[task_pb2.TASK_STATE_QUEUED])
    assert read(api.ListTasksRequest(filter=same, page_token=token, fresh=True)) == "x"
    for other in (
        api.ListTasksRequest(),
        api.ListTasksRequest(filter=task_pb2.TaskFilter(labels={"a": "2"}, states=wanted.states)),
        api.ListTasksRequest(filter=wanted, order=task_pb2.TASK_ORDER_WAIT_DEADLINE),
    ):
        other.page_token = token
        with pytest.raises(InvalidRequest, match="page_token"):
            read(other)


def test_other_methods_are_the_servicers_own() -> None:
    servicer: Any = Mock(spec=AdminServiceServicer)
    pages = SealedPages(servicer, "tenure.v1.AdminService")
    assert pages.GetCaller == servicer.GetCaller
    assert pages.ListWorkers != servicer.ListWorkers
    validate_page(admin_service_pb2.GetCallerRequest(), 0)


def test_a_token_of_another_list_of_a2a_is_refused() -> None:
    first = QueryParams({"contextId": "a", "pageSize": "2"})
    token = _token(_seal(first), _Position(7, "01a2025d-5126-7000-8000-000000000000"))
    read = TaskListQuery.read(QueryParams({"contextId": "a", "pageToken": token}))
    assert read.before == _Position(7, "01a2025d-5126-7000-8000-000000000000")
    for other in ({"contextId": "b"}, {"contextId": "a", "status": "TASK_STATE_WORKING"}, {}):
        with pytest.raises(InvalidRequest, match="pageToken"):
            TaskListQuery.read(QueryParams({**other, "pageToken": token}))
