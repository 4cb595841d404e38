"""The error of a process that cannot listen on one of its addresses."""

from __future__ import annotations


class CannotListen(OSError):  # noqa: N818  the name says what happened
    """Another process uses the port, or this machine lacks the address. The message fits an operator."""

    def __init__(self, address: object, why: str = "the port is in use, or this machine has no such address") -> None:
        super().__init__(
            f"cannot listen on {address}: {why}; end the process that uses the port, or set another address"
            " (`tenure serve NAME --help` names the variables)"
        )
