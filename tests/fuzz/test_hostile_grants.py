"""Grants and leases registered with numbers that no coordinator makes: granting goes on for tasks and resources."""

from __future__ import annotations

import uuid
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.runtime.retrying import retrying
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import checkpoint_service_pb2 as pb
from tests.fuzz.calling import call, check_answer
from tests.fuzz.hostile import INT64
from tests.fuzz.messages import messages
from tests.fuzz.methods import method_named
from tests.fuzz.profile import examples
from tests.fuzz.world import CONTROL, World
from tests.support.fix_leases import Leases
from tests.support.patience import AGAIN

pytestmark = [
    pytest.mark.server,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(3600),
    pytest.mark.faults,
]

GRANTS: Final = method_named("checkpoint-CheckpointService.RegisterGrants")
LEASE: Final = method_named("checkpoint-CheckpointService.RegisterLease")
RAISE: Final = method_named("checkpoint-CheckpointService.RaiseGeneration")
REVISION_BITS: Final = 40
EPOCHS: Final = st.one_of(
    st.sampled_from(INT64),
    st.sampled_from([2**63 - 1 - 2**REVISION_BITS, 2**63 - 2, (1 << 23) - 1]),
    st.integers(0, 5).flatmap(lambda generation: st.integers(0, 2**20).map(lambda n: (generation << 40) + n)),
    st.integers(1, 5).map(lambda generation: (generation << REVISION_BITS) - 1),
)
KNOWN: Final = {"epoch": EPOCHS, "previous_epoch": EPOCHS}


@pytest.mark.parametrize("method", [GRANTS, LEASE, RAISE], ids=str)
@examples(6)
@given(data=st.data())
async def test_any_registration_leaves_others_grantable(world: World, method: Any, data: Any) -> None:
    known = await world.known()
    made = messages(method.descriptor.input_type, {**known, **KNOWN, "claim_id": st.uuids().map(str)}, hostile_in=30)
    for request in data.draw(st.lists(made, min_size=1, max_size=6)):
        answer = await call(world.bare["checkpoint"], method, [request])
        world.tally.codes[str(method), answer.code.name] += 1
        check_answer(method, [request], answer)
    await world.control()
    await _lease_is_had(world)
    world.check_processes()


async def test_a_grant_with_the_highest_epoch_stops_no_other_task(world: World) -> None:
    grant = pb.RegisterGrantsRequest.Grant(
        task_id=await world.submit("fuzz"), epoch=2**63 - 1, claim_id=str(uuid.uuid4())
    )
    sent = pb.RegisterGrantsRequest(grants=[grant])
    check_answer(GRANTS, [sent], await call(world.bare["checkpoint"], GRANTS, [sent]))
    await world.control()
    await _lease_is_had(world)


async def _lease_is_had(world: World) -> None:
    """Acquired, renewed and released by a worker that sent none of it."""
    async with open_channel(world.stack.services["coordinator"].address, tenant=CONTROL) as channel:
        leases = Leases(channel)
        lease = await retrying(lambda: leases.acquire(f"table/{uuid.uuid4()}"), AGAIN)
        assert (await leases.renew(lease)).epoch == lease.epoch
        assert await leases.release(lease)
