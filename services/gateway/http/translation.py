"""Handlers that only translate: the path, the query and the body become the request of one method, by their names.

The answer becomes the public value of the same names, or that of its only part. tenure/wire/codec.py has the rules.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Unpack

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tenure.sdk.from_wire import public
from tenure.sdk.public_value import PUBLIC
from tenure.validators.rules import rule_of
from tenure.wire.codec import PairOptions, fields_of, writer

if TYPE_CHECKING:
    from services.gateway.http.call import HttpCall

Handler = Callable[..., Awaitable[Any]]
"""Gets the call, the query and the body (None without one). Returns a public value, or a whole response."""
_PACKAGE: Final = "tenure.v1"
_IN_PATH: Final = re.compile(r"{(\w+)(?::path)?}")


def translating(
    method: str,
    path: str,
    sent: type[Any],
    answer: type[Any],
    leaves_out: str = "",
    **options: Unpack[PairOptions],
) -> Handler:
    """Returns the handler that calls a method, "WebhookService.PauseWebhook".

    `sent`: the dataclass of the body, or of the query without a body. `leaves_out`: fields of the method's answer.
    `options`: how the request differs from path and dataclass.
    """
    service, _, name = method.partition(".")
    rpc = descriptor_pool.Default().FindServiceByName(f"{_PACKAGE}.{service}").methods_by_name[name]
    renamed = options.get("rename", {})
    in_path = {part: renamed.get(part, part) for part in _IN_PATH.findall(path)}
    own = {field for field, _ in fields_of(sent)}
    options["rename"] = {field: other for field, other in renamed.items() if field in own}
    apart = {*in_path.values(), *_of_gateway(rpc.input_type)} - {renamed.get(field, field) for field in own}
    options["skip"] = " ".join([*apart, *options.get("skip", "").split()])
    request_type, answer_type = GetMessageClass(rpc.input_type), GetMessageClass(rpc.output_type)
    to_request, shown = writer(sent, request_type, **options), _reader(answer, answer_type, leaves_out)
    rpc_path = f"/{_PACKAGE}.{service}/{name}"
    repeats_safely = "request_id" in rpc.input_type.fields_by_name

    async def handle(call: HttpCall, query: Any, body: Any) -> Any:
        request: Any = to_request(query if body is None else body)
        for part, field in in_path.items():
            setattr(request, field, call.path(part))
        if repeats_safely and not request.request_id:
            request.request_id = call.request_id
        return shown(await call.one(call.stubs.unary(rpc_path, request_type, answer_type), request))

    handle.__name__ = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    return handle


def _of_gateway(request: Descriptor) -> set[str]:
    """Returns the fields that the gateway sets, whatever the client sent."""
    return {field.name for field in request.fields if (rule := rule_of(field)) is not None and rule.by_gateway}


def _reader(answer: type[Any], kind: type[Message], leaves_out: str) -> Callable[[Any], Any]:
    if kind in PUBLIC:
        return PUBLIC[kind]
    descriptor: Any = kind.DESCRIPTOR
    first, *others = descriptor.fields
    if others or first.is_repeated or first.message_type is None:
        return public(answer, kind, skip=leaves_out)
    read = PUBLIC[GetMessageClass(first.message_type)]
    return lambda sent: read(getattr(sent, first.name))
