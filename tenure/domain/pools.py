"""Decides which queues, loops and tenants a worker may serve: an operator's file puts workers into pools.

The content of the file, as plain values:

    {"pools": {"acme": {"identities": ["acme-1"], "queues": ["default"], "loops": ["messages"], "tenants": ["acme"]}}}

An identity is the name in a worker's certificate (`spiffe://<installation>/worker/<name>`). A list that is absent means
all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tenure.domain.access import TENANT_NAME, names_for
from tenure.domain.errors import PermissionDenied
from tenure.domain.task import UNDO_LOOP, offered_function, offered_loop, plain_loop

NOT_IN_POOL: Final = "NOT_IN_POOL"
"""The reason of a refusal: no pool has the worker's identity."""
OUTSIDE_POOL: Final = "OUTSIDE_POOL"
"""The reason of a refusal: the worker's pool does not have a queue, loop or tenant."""
SETTING: Final = "TENURE_COORDINATOR_POOLS_FILE"
MAX_POOL_NAMES: Final = 1000
"""Names in one list. Each request for offers carries the tenants of a pool."""
_KEYS: Final = ("identities", "queues", "loops", "tenants")
_IDENTITY: Final = re.compile(r"[a-zA-Z0-9._-]{1,128}")
_NAME: Final = re.compile(r"[^\s\x00-\x1f\x7f-\x9f]{1,128}")
Problem = Callable[[str], None]
"""Takes the description of a mistake in the file."""


class MalformedPools(Exception):  # noqa: N818  the noun of the content
    """The content of a file of pools has mistakes."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


@dataclass(frozen=True, slots=True)
class WorkerPool:
    """A pool of workers. `queues`, `loops` and `tenants` None: all of them."""

    name: str
    identities: frozenset[str]
    queues: frozenset[str] | None = None
    loops: frozenset[str] | None = None
    tenants: frozenset[str] | None = None

    def takes_tenant(self, tenant: str) -> bool:
        """Whether its workers may have tasks of the tenant."""
        return self.tenants is None or tenant in self.tenants

    def check(self, identity: str, queues: Iterable[str], loops: Iterable[str]) -> None:
        """Raises PermissionDenied (OUTSIDE_POOL) for a worker that serves a queue or loop of which the pool is not."""
        loops = [_loop_of_pool(loop) for loop in loops if loop != UNDO_LOOP]
        wanted = (("queue", "QUEUES", queues, self.queues), ("loop", "LOOPS", loops, self.loops))
        for noun, variable, names, allowed in wanted:
            outside = sorted(set(names) - allowed) if allowed is not None else []
            if outside:
                raise PermissionDenied(
                    f"the pool {self.name} of worker {identity} does not serve the {noun} {', '.join(outside)}: set "
                    f"TENURE_WORKER_{variable} to a part of {', '.join(sorted(allowed or ()))}, or add the {noun} to "
                    f"the pool in the file of {SETTING}",
                    reason=OUTSIDE_POOL,
                    metadata={"pool": self.name, noun: outside[0]},
                )


def _loop_of_pool(loop: str) -> str:
    """Returns the loop by which a pool has it: revisions of a function, and undos of its tasks, are the function's."""
    function = offered_function(loop)
    return offered_loop(function) if function else plain_loop(loop)


EVERYTHING: Final = WorkerPool("", frozenset())
"""The pool of every worker of an installation without a file of pools."""


def pool_of(pools: Collection[WorkerPool], identity: str) -> WorkerPool:
    """Returns the pool that has the identity. Raises PermissionDenied (NOT_IN_POOL)."""
    pool = next((pool for pool in pools if identity in pool.identities), None)
    if pool is None:
        raise PermissionDenied(
            f"no pool has the worker identity {identity}: add it to the identities of a pool in the file of {SETTING}",
            reason=NOT_IN_POOL,
            metadata={"identity": identity},
        )
    return pool


def read_pools(content: Any) -> tuple[WorkerPool, ...]:
    """Returns the pools in the content of a file. Raises MalformedPools with all mistakes."""
    problems: list[str] = []
    pools = tuple(_pools(content, problems.append))
    problems += _shared_identities(pools)
    if problems:
        raise MalformedPools(problems)
    return pools


def _pools(content: Any, problem: Problem) -> Iterator[WorkerPool]:
    if not isinstance(content, Mapping) or set(content) != {"pools"}:
        problem("the file must have one key, pools")
    elif not isinstance(content["pools"], Mapping) or not content["pools"]:
        problem("pools: it must have at least one pool, NAME: {identities: […], …}")
    else:
        for name, section in content["pools"].items():
            yield from _pool(name, section, problem)


def _pool(name: Any, section: Any, problem: Problem) -> Iterator[WorkerPool]:
    place = f"pools.{name}"
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        problem(f"{place}: the name of a pool must be a text of 1 to 128 characters without spaces")
    if not isinstance(section, Mapping):
        problem(f"{place}: it must have the keys {', '.join(_KEYS)}; only identities is required")
        return
    for key in section:
        if key not in _KEYS:
            problem(f"{place}.{key}: the key is unknown; the keys of a pool are {', '.join(_KEYS)}")
    if "identities" not in section:
        problem(f"{place}.identities: it is missing; list the names in the certificates of the pool's workers")
    lists = {key: _names(f"{place}.{key}", section[key], key, problem) for key in _KEYS if key in section}
    yield WorkerPool(str(name), lists.pop("identities", frozenset()), **lists)


def _names(place: str, names: Any, key: str, problem: Problem) -> frozenset[str]:
    if not isinstance(names, list) or not names:
        without = "" if key == "identities" else "; leave the key out for all"
        problem(f"{place}: it must be a list with at least one name{without}")
        return frozenset()
    if len(names) > MAX_POOL_NAMES:
        problem(f"{place}: it has {len(names)} names; at most {MAX_POOL_NAMES}")
    for name in names:
        if not isinstance(name, str):
            problem(f"{place}: {name!r} is not a text; put it in quotes")
        elif key == "identities" and _IDENTITY.fullmatch(name) is None:
            problem(
                f"{place}: {name!r} is not the name in a certificate; of spiffe://<installation>/worker/<name> write "
                "<name> only"
            )
        elif key == "tenants" and TENANT_NAME.fullmatch(name) is None:
            problem(f"{place}: {name!r} is not a name of a tenant: 1 to 63 characters of a-z, 0-9 and -")
        elif _NAME.fullmatch(name) is None:
            problem(f"{place}: {name!r} is not a name of 1 to 128 characters without spaces")
        elif names.count(name) > 1:
            problem(f"{place}: {name} is there {names.count(name)} times")
    return frozenset(name for name in names if isinstance(name, str))


def _shared_identities(pools: Iterable[WorkerPool]) -> Iterator[str]:
    """Yields the identities with which a worker could act as a worker of another pool."""
    pool_names: dict[str, str] = {}
    for pool in pools:
        for identity in sorted(pool.identities):
            first = pool_names.setdefault(identity, pool.name)
            if first != pool.name:
                yield f"pools.{pool.name}.identities: {identity} is in the pool {first} too; an identity has one pool"
    for identity, name in pool_names.items():
        for shorter in sorted(names_for(identity) - {identity}):
            if (other := pool_names.get(shorter, name)) != name:
                yield (
                    f"pools.{name}.identities: a worker with the certificate {shorter}, of the pool {other}, may call "
                    f"itself {identity}; give one of the two another name"
                )
