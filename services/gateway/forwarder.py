"""Serves the public services: forwards each method that a servicer does not define itself.

The contract says where a call goes: to the method behind the gateway that has the same request and the same answer.
`client_fields.py` has set the fields that clients must not choose. So every call may be repeated behind the gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from operator import attrgetter
from typing import Any, Final

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor

from services.gateway.peers import PEER_SERVICES, Peers, with_retries
from tenure.domain.access import Role
from tenure.domain.errors import NotFound
from tenure.wire.access import access_rules

PACKAGE: Final = "tenure.v1"
Handler = Callable[[Any, Any], Coroutine[Any, Any, Any]]


class Forwarder:
    """Serves one public service. A subclass defines the methods that do more than forward."""

    def __init__(self, service: str, peers: Peers) -> None:
        """Raises ValueError for a method that is neither defined nor has a method behind the gateway."""
        self._peers = peers
        name = f"{PACKAGE}.{service}"
        rules = access_rules(name)
        for method in descriptor_pool.Default().FindServiceByName(name).methods:
            if not hasattr(self, method.name):
                is_for_clients = rules[method.name].permission is not None
                setattr(self, method.name, _forward(peers, method) if is_for_clients else _refuse(method.name))


def _forward(peers: Peers, method: MethodDescriptor) -> Handler:
    behind = methods_behind().get(_types(method))
    if behind is None or method.server_streaming:
        raise ValueError(f"{method.full_name}: define it, or give a unary method of a service its request and answer")
    find = attrgetter(behind)

    async def forward(request: Any, _context: Any) -> Any:
        return await with_retries(lambda: find(peers)(request))

    return forward


def _refuse(name: str) -> Handler:
    async def refuse(_request: Any, _context: Any) -> Any:
        raise NotFound(f"{name} is for processes of the installation", reason="NOT_FOR_CLIENTS")

    return refuse


@cache
def methods_behind() -> Mapping[tuple[str, str], str]:
    """Returns the methods that gateways may call, "<attribute of Peers>.<method>", by their request and answer."""
    methods: dict[tuple[str, str], str] = {}
    for attribute, service in PEER_SERVICES.items():
        rules = access_rules(f"{PACKAGE}.{service}")
        for method in descriptor_pool.Default().FindServiceByName(f"{PACKAGE}.{service}").methods:
            if Role.GATEWAY not in rules[method.name].roles:
                continue
            other = methods.setdefault(_types(method), f"{attribute}.{method.name}")
            if other != f"{attribute}.{method.name}":
                raise ValueError(f"{method.full_name} and {other} have the same request and answer")
    return methods


def _types(method: MethodDescriptor) -> tuple[str, str]:
    return method.input_type.full_name, method.output_type.full_name
