"""The pytest plugin: the fixture `tenure`. The package registers it, so a conftest.py needs nothing.

Importing this module imports pytest only: it is imported in every run of pytest where Tenure is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tenure.testing.session import Tenure
    from tenure.testing.stack import Stack


class SharedStack:
    """The stack of this process, started at its first use. A test that breaks it has the next one start anew."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._stack: Stack | None = None

    @contextmanager
    def session(self) -> Iterator[Tenure]:
        """Yields `tenure` for one test."""
        stack = self._started()
        is_whole = False
        try:
            with stack.session() as tenure:
                yield tenure
            is_whole = True
        finally:
            if not is_whole:
                self.stop()

    def stop(self) -> None:
        """Stops the stack, if there is one."""
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.stop()

    def _started(self) -> Stack:
        from tenure.testing.stack import Stack

        if self._stack is None:
            stack = Stack(**self._options)
            stack.start()
            self._stack = stack
        return self._stack


@pytest.fixture(scope="session")
def tenure_options() -> dict[str, Any]:
    """The arguments of `tenure.testing.Stack` for the shared stack. Override it in your conftest.py."""
    return {}


@pytest.fixture(scope="session")
def tenure_stack(tenure_options: dict[str, Any]) -> Iterator[SharedStack]:
    """The stack that all tests of this process share. With pytest-xdist each process has one."""
    shared = SharedStack(tenure_options)
    yield shared
    shared.stop()


@pytest.fixture
def tenure(tenure_stack: SharedStack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tenure]:
    """Tenure for one test: see docs/testing.md."""
    with tenure_stack.session() as tenure:
        monkeypatch.setenv("TENURE_ADDRESS", tenure.address)
        monkeypatch.setenv("TENURE_TENANT", tenure.tenant)
        yield tenure
