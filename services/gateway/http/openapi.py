"""The OpenAPI document, made of the table of routes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Final

from services.gateway.http.answers import Problem
from services.gateway.http.api_route import ApiRoute, Bytes, EventsOf
from services.gateway.http.shapes import Schemas
from tenure.runtime.release import VERSION

REQUEST_ID: Final = "request_id"
_PARAMETER: Final = re.compile(r"\{(\w+)(:path)?\}")
_TENANT: Final = {
    "name": "Tenure-Tenant",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "the tenant, for callers that may name one; also as the parameter `tenant`",
}
_IDEMPOTENCY_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "maxLength": 128},
    "description": "makes a repeat of the request safe; also as `request_id` of the body",
}
_LAST_EVENT_ID: Final = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "continue after this event; an EventSource sends it by itself",
}


def openapi_document(routes: Iterable[ApiRoute]) -> dict[str, Any]:
    """Returns the document, OpenAPI 3.1."""
    schemas, paths = Schemas(), dict[str, dict[str, Any]]()
    problem = schemas.of(Problem)
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, schemas, problem)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tenure",
            "version": VERSION,
            "description": "Durable, resumable tasks for AI agents. Ignore fields that you do not know.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.components.items())),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "an API key, or a token of the identity provider",
                }
            },
        },
        "security": [{"bearer": []}, {}],
    }


def _operation(route: ApiRoute, schemas: Schemas, problem: dict[str, Any]) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": match[1], "in": "path", "required": True, "schema": {"type": "string"}}
        for match in _PARAMETER.finditer(route.path)
    ]
    parameters += [
        {"name": one.name, "in": "query", "required": one.is_needed, "schema": one.schema, "description": one.text}
        for one in schemas.parameters(route.query)
    ]
    parameters += [_TENANT, *([_LAST_EVENT_ID] if isinstance(route.answer, EventsOf) else [])]
    if route.body is not None and any(one.name == REQUEST_ID for one in fields(route.body)):
        parameters.append(_IDEMPOTENCY_KEY)
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.group],
        "parameters": parameters,
        "responses": {
            str(route.status): {"description": route.summary, "content": _content(route, schemas)},
            "default": {"description": "an error", "content": {"application/problem+json": {"schema": problem}}},
        },
    }
    if isinstance(route.answer, EventsOf):
        operation["responses"]["204"] = {"description": "nothing follows: the client has seen the end"}
    if route.body is not None:
        schema = schemas.of(route.body, is_request=True)
        operation["requestBody"] = {"required": False, "content": {"application/json": {"schema": schema}}}
    return operation


def _content(route: ApiRoute, schemas: Schemas) -> dict[str, Any]:
    match route.answer:
        case EventsOf(data):
            kinds = {"anyOf": [schemas.of(kind) for kind in data]}
            return {"text/event-stream": {"schema": {"type": "string"}, "x-event-data": kinds}}
        case Bytes(media_type):
            return {media_type: {}}
        case kind:
            return {"application/json": {"schema": schemas.of(kind)}}
