"""The errors of tests: a point that is not reached, a violated invariant, tasks that do not end."""

from __future__ import annotations


class PointNotReached(TimeoutError):  # noqa: N818  the name says what happened
    """The worker did not reach the point in time, or died before. The message says what the tasks did."""


class InvariantViolated(AssertionError):  # noqa: N818  the name says what happened
    """The checker found a violated invariant in the history of the test's tasks. The message lists the violations."""


class NotCleanedUp(RuntimeError):  # noqa: N818  the name says what happened
    """Tasks of the test did not end when it ended. The next test gets a new stack."""
