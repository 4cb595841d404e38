"""Which fault the next request meets: those ordered at run time first, then the scenario's own."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenure.dev.simulator.scenario import Fault

MAX_ORDERED = 1000
MAX_CONVERSATIONS = 10_000


class TooManyFaults(Exception):  # noqa: N818  says what happened
    """More faults are ordered than the simulator keeps."""


@dataclass
class _Ordered:
    fault: Fault
    endpoint: str
    model: str | None
    left: int


class Faults:
    """Orders are used up in the order they came, each `count` times. A scenario's fault counts per conversation."""

    def __init__(self) -> None:
        self._ordered: list[_Ordered] = []
        self._seen: OrderedDict[bytes, int] = OrderedDict()

    def clear(self) -> None:
        self._ordered.clear()
        self._seen.clear()

    def order(self, fault: Fault, *, endpoint: str = "messages", model: str | None = None, count: int = 1) -> None:
        """Raises TooManyFaults beyond 1,000 orders that nothing has met yet."""
        if len(self._ordered) >= MAX_ORDERED:
            raise TooManyFaults(f"{MAX_ORDERED} faults are waiting already")
        self._ordered.append(_Ordered(fault, endpoint, model, count))

    def next_ordered(self, endpoint: str, model: str) -> Fault | None:
        for order in self._ordered:
            if order.endpoint == endpoint and order.model in {None, model}:
                order.left -= 1
                if order.left == 0:
                    self._ordered.remove(order)
                return order.fault
        return None

    def next_written(self, fault: Fault | None, body: Mapping[str, Any]) -> Fault | None:
        """The scenario's fault, unless this very request (its model, messages and user) has met it `times` times."""
        if fault is None or fault.times is None:
            return fault
        identity = json.dumps([body["model"], body["messages"], body.get("metadata")]).encode()
        key = hashlib.blake2b(identity, digest_size=16).digest()
        met = self._seen.get(key, 0)
        if met >= fault.times:
            return None
        self._seen[key] = met + 1
        while len(self._seen) > MAX_CONVERSATIONS:
            self._seen.popitem(last=False)
        return fault
