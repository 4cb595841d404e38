"""Why there is no sandbox."""

from __future__ import annotations

from collections.abc import Sequence


class SandboxUnavailable(RuntimeError):  # noqa: N818  # a state of the machine, named as such
    """No program can be run safely on this machine; the text says what is missing. Nothing is ever run without."""


class SandboxEscaped(RuntimeError):  # noqa: N818  a state of the machine, named as such
    """Programs run, and a probe got out: a wall is not where it seems to be. `escapes` says what each one did."""

    def __init__(self, escapes: Sequence[str]) -> None:
        super().__init__("the sandbox does not hold, a program inside it " + "; ".join(escapes))
        self.escapes = tuple(escapes)
