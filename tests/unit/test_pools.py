"""Pools of workers: what each may take, and which files are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.coordinator.pools import WorkerPools, parse_pools
from services.coordinator.sessions.session import WorkerProfile
from tenure.domain.errors import PermissionDenied
from tenure.domain.pools import MalformedPools, WorkerPool, pool_of, read_pools
from tenure.domain.task import UNDO_LOOP, undo_loop
from tenure.v1 import coordinator_service_pb2 as pb

ACME: dict[str, Any] = {
    "identities": ["acme-1", "acme-2"],
    "queues": ["default", "gpu"],
    "loops": ["messages"],
    "tenants": ["acme"],
}
FILE: dict[str, Any] = {"pools": {"acme": ACME, "ours": {"identities": ["worker-1"]}}}


def test_each_identity_has_the_limits_of_its_pool() -> None:
    pools = read_pools(FILE)
    acme, ours = pool_of(pools, "acme-2"), pool_of(pools, "worker-1")
    assert [acme.takes_tenant(tenant) for tenant in ("acme", "other")] == [True, False]
    assert [ours.takes_tenant(tenant) for tenant in ("acme", "other")] == [True, True]
    acme.check("acme-2", ["gpu"], ["messages"])
    ours.check("worker-1", ["anything"], ["control.anything"])


@pytest.mark.parametrize(
    ("queues", "loops", "outside", "variable"),
    [
        (["gpu", "secret"], ["messages"], "the queue secret", "TENURE_WORKER_QUEUES to a part of default, gpu"),
        (["gpu"], ["mine"], "the loop mine", "TENURE_WORKER_LOOPS to a part of messages"),
    ],
)
def test_a_queue_or_loop_outside_of_the_pool_is_refused(
    queues: list[str], loops: list[str], outside: str, variable: str
) -> None:
    with pytest.raises(PermissionDenied) as refused:
        pool_of(read_pools(FILE), "acme-1").check("acme-1", queues, loops)
    assert refused.value.reason == "OUTSIDE_POOL"
    assert f"the pool acme of worker acme-1 does not serve {outside}" in str(refused.value)
    assert variable in str(refused.value)


def test_loops_of_a_pool_do_not_limit_undos() -> None:
    """Each worker offers them: what an undo calls is fixed by the ledger."""
    pool = pool_of(read_pools(FILE), "acme-1")
    pool.check("acme-1", ["gpu"], ["messages", UNDO_LOOP])
    with pytest.raises(PermissionDenied):
        pool.check("acme-1", ["secret"], [UNDO_LOOP])


def test_undos_with_own_tools_need_the_function_in_the_pool() -> None:
    pool = WorkerPool("shops", frozenset({"shop-1"}), loops=frozenset({"control.shop"}))
    pool.check("shop-1", [], ["control.shop", undo_loop("shop"), UNDO_LOOP])
    with pytest.raises(PermissionDenied, match=r"does not serve the loop control\.bank"):
        pool.check("shop-1", [], [undo_loop("bank")])


@pytest.mark.parametrize("identity", ["acme", "acme-3", "acme-1-x", ""])
def test_an_identity_that_no_pool_names_is_refused(identity: str) -> None:
    with pytest.raises(PermissionDenied) as refused:
        pool_of(read_pools(FILE), identity)
    assert refused.value.reason == "NOT_IN_POOL"
    assert "TENURE_COORDINATOR_POOLS_FILE" in str(refused.value)


def test_a_hello_without_queues_and_loops_asks_for_the_defaults() -> None:
    profile = WorkerProfile.of(pb.Hello())
    with pytest.raises(PermissionDenied, match="queue default"):
        pool_of(read_pools({"pools": {"p": {"identities": ["w"], "queues": ["gpu"]}}}), "w").check(
            "w", profile.queues, profile.loops
        )


def test_without_a_file_each_worker_has_everything() -> None:
    pool = WorkerPools(None).admit("", WorkerProfile.of(pb.Hello(queues=["any"], loops=["any"])))
    assert (pool.name, pool.tenants) == ("", None)


def with_acme(**changes: Any) -> Any:
    return {"pools": {"acme": {**ACME, **changes}}}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "the file must have one key, pools"),
        ([], "the file must have one key, pools"),
        ({"pools": {}, "pool": {}}, "the file must have one key, pools"),
        ({"pools": {}}, "pools: it must have at least one pool"),
        ({"pools": [ACME]}, "pools: it must have at least one pool"),
        ({"pools": {"acme": ["acme-1"]}}, "pools.acme: it must have the keys identities, queues, loops, tenants"),
        ({"pools": {7: ACME}}, "pools.7: the name of a pool must be a text"),
        ({"pools": {"acme": {}}}, "pools.acme.identities: it is missing"),
        (with_acme(identities=[]), "pools.acme.identities: it must be a list with at least one name"),
        (with_acme(tenants=[]), "pools.acme.tenants: it must be a list with at least one name; leave the key out"),
        (with_acme(queues=None), "pools.acme.queues: it must be a list with at least one name"),
        (with_acme(loops="messages"), "pools.acme.loops: it must be a list with at least one name"),
        (with_acme(tenant=["acme"]), "pools.acme.tenant: the key is unknown"),
        (with_acme(tenants=[7]), "pools.acme.tenants: 7 is not a text; put it in quotes"),
        (with_acme(queues=["a b"]), "pools.acme.queues: 'a b' is not a name"),
        (with_acme(tenants=["acme", "Acme"]), "pools.acme.tenants: 'Acme' is not a name of a tenant"),
        (with_acme(tenants=[f"t{n}" for n in range(1001)]), "pools.acme.tenants: it has 1001 names; at most 1000"),
        (with_acme(identities=["spiffe://tenure/worker/acme-1"]), "of spiffe://<installation>/worker/<name> write"),
        (with_acme(identities=["a", "b", "a"]), "pools.acme.identities: a is there 2 times"),
        (
            {"pools": {"acme": ACME, "ours": {"identities": ["acme-2"]}}},
            "pools.ours.identities: acme-2 is in the pool acme too",
        ),
        (
            {"pools": {"acme": ACME, "ours": {"identities": ["acme"]}}},
            "a worker with the certificate acme, of the pool ours, may call itself acme-1",
        ),
    ],
)
def test_a_malformed_file_is_refused_with_its_mistake(content: Any, problem: str) -> None:
    with pytest.raises(MalformedPools) as refused:
        read_pools(content)
    assert any(problem in each for each in refused.value.problems), refused.value.problems


def test_all_mistakes_of_a_file_are_reported_at_once() -> None:
    with pytest.raises(MalformedPools) as refused:
        read_pools(with_acme(identities=[], colour=["red"]))
    assert len(refused.value.problems) == 2


def test_identities_of_one_pool_may_begin_with_each_other() -> None:
    [pool] = read_pools({"pools": {"p": {"identities": ["acme", "acme-1"]}}})
    assert pool.identities == {"acme", "acme-1"}


def test_a_file_is_yaml_or_json() -> None:
    yaml = b"pools:\n  acme:\n    identities: [acme-1, acme-2]\n    tenants: [acme]\n"
    as_json = json.dumps({"pools": {"acme": {"identities": ["acme-1", "acme-2"], "tenants": ["acme"]}}}).encode()
    assert parse_pools(yaml) == parse_pools(as_json)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"pools: {a: {identities: [x], tenants: [t], tenants: [u]}}", "the key tenants is there twice"),
        (b"pools: {a: {identities: [x]}, a: {identities: [y]}}", "the key a is there twice"),
        (b"pools: [", "it is not valid YAML"),
        (b"\xff\xfe\x00", "it is not valid YAML"),
        (b"pools: !!python/object/apply:os.system [ls]", "it is not valid YAML"),
        (b"pools: {[a]: {}}", "it is not valid YAML"),
        (b"#" * (1024 * 1024 + 1), "it is larger than"),
        (b"", "the file must have one key, pools"),
    ],
)
def test_a_file_that_is_not_plain_yaml_is_refused(content: bytes, problem: str) -> None:
    with pytest.raises(MalformedPools) as refused:
        parse_pools(content)
    assert problem in str(refused.value)
