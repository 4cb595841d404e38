"""Why there is no sandbox."""

from __future__ import annotations


class SandboxUnavailable(RuntimeError):  # noqa: N818  # a state of the machine, named as such
    """No program can be run safely on this machine; the text says what is missing. Nothing is ever run without."""
