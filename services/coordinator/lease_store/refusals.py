"""Translates etcd's errors into the coordinator's errors."""
# ruff: noqa: N818 - like the domain's errors, these are named for what happened

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from services.coordinator.etcd.calls import EtcdError, LeaseExpired, SpaceExhausted
from tenure.domain.errors import Unavailable

ETCD_UNAVAILABLE = "ETCD_UNAVAILABLE"
ETCD_OUT_OF_SPACE = "ETCD_OUT_OF_SPACE"
ETCD_UNREADABLE = "ETCD_UNREADABLE"


class SessionLost(Exception):
    """The session's lease or key is gone, and with it every claim under it."""


class GenerationMoved(Exception):
    """etcd is at another generation than this replica. Nothing was done: check the generation first."""


@contextmanager
def translated_errors() -> Iterator[None]:
    """Translates errors of the etcd client.

    An unclear write becomes Unavailable too: a caller that cares reads back first.
    """
    try:
        yield
    except LeaseExpired as error:
        raise SessionLost(str(error)) from error
    except SpaceExhausted as error:
        raise Unavailable(f"etcd: {error}", reason=ETCD_OUT_OF_SPACE) from error
    except EtcdError as error:
        raise Unavailable(f"etcd: {error}", reason=ETCD_UNAVAILABLE) from error
