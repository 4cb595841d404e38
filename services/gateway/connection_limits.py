"""Limits the open connections of a port of the gateway: those of one address, and all."""

from __future__ import annotations

import logging
import resource
from collections import Counter
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from services.gateway.client_addresses import Network, is_trusted, limited_place

_log: Final = logging.getLogger(__name__)
_SILENT_SECONDS: Final = 60.0
"""Between two log lines about refused connections."""


class ConnectionLimits:
    """The open connections of one port, of all and of each address.

    Those of trusted proxies, which many share, only count as all. Half of the open files that the process may have
    is the most.
    """

    def __init__(self, port: str, most: int, most_of_address: int, trusted: Sequence[Network]) -> None:
        self._port = port
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = most if soft == resource.RLIM_INFINITY else min(most, max(1, soft // 2))
        self._most_of_address, self._trusted = most_of_address, trusted
        self._all, self._places = 0, Counter[str]()
        self._refused, self._logged_at_seconds = 0, float("-inf")

    def begin(self, address: str) -> Callable[[], None] | None:
        """Counts a connection. Returns what ends it, once, or None for one that is refused."""
        place = "" if is_trusted(address, self._trusted) else limited_place(address)
        if self._all >= self._most or (place and self._places[place] >= self._most_of_address):
            self._refuse(address)
            return None
        self._all += 1
        self._places[place] += 1
        is_open = True

        def end() -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                self._all -= 1
                self._places[place] -= 1
                if not self._places[place]:
                    del self._places[place]

        return end

    def _refuse(self, address: str) -> None:
        self._refused += 1
        now_seconds = monotonic()
        if now_seconds - self._logged_at_seconds >= _SILENT_SECONDS:
            self._logged_at_seconds = now_seconds
            fields = {"address": address, "refused": self._refused, "open": self._all}
            _log.warning(f"connections beyond the limits of the {self._port} port are refused", extra=fields)
