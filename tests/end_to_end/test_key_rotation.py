"""The signing key of fencing tokens changes while tasks run: none of them notices."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from tenure.runtime.security.signing import LOOK_SECONDS, Signer
from tenure.v1 import task_pb2
from tests.end_to_end.command import Done, tenure
from tests.end_to_end.installation import Installation, check_whole
from tests.end_to_end.steady_load import SteadyLoad
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.faults]
SUCCEEDED: Final = task_pb2.TASK_STATE_SUCCEEDED
READ_SECONDS: Final = LOOK_SECONDS + 1.0
"""Until each service has read a changed key file: it looks every LOOK_SECONDS."""


async def keys(install: Installation, command: str, *arguments: str) -> Done:
    folder = install.stack.layout.signing_key.parent
    done = await tenure("keys", command, str(folder), *arguments, address=install.stack.gateway_address)
    assert done.code == 0, done.err
    return done


async def signed_again(install: Installation) -> None:
    """Waits until the coordinator signs with the new key, and has then renewed every claim of that moment."""
    key_id = Signer.load(install.stack.layout.signing_key).key_id
    async with asyncio.timeout(PATIENCE_SECONDS):
        while f'"key_id":"{key_id}"' not in install.stack.services["coordinator"].log().replace(" ", ""):
            await asyncio.sleep(0.1)
        waiting = {claim.claim_id: claim.renewals.count for claim in (await install.client.claims()).claims}
        while waiting:
            counts = {claim.claim_id: claim.renewals.count for claim in (await install.client.claims()).claims}
            # the first renewal after that moment may have been on its way before it
            waiting = {one: count for one, count in waiting.items() if one in counts and counts[one] < count + 2}
            await asyncio.sleep(0.1)


async def rotate_twice(install: Installation, former: set[str]) -> None:
    """Rotates the key and withdraws the former one, twice. Adds the former keys to the set."""
    for _ in range(2):
        done = await keys(install, "rotate", "--wait", f"{READ_SECONDS}s")
        key_id = done.out.split()[-1]
        await signed_again(install)
        await keys(install, "withdraw", key_id)
        former.add(key_id)


async def test_no_task_notices_a_rotation_of_the_signing_key(own_installation: Installation) -> None:
    """Two tasks hold their claim all the time, with tokens that two withdrawn keys signed; others come and go."""
    install = own_installation
    lasting = [await install.submit("sim-e2e-slow-answer") for _ in range(2)]
    for task_id in lasting:
        await install.speaking(task_id)
    former, load = set[str](), SteadyLoad(install)
    await load.run_while(asyncio.create_task(rotate_twice(install, former)))
    await load.check()
    ended = [await install.ended(task_id) for task_id in lasting]
    assert {(task.state, task.claim_count, task.attempt) for task in ended} == {(SUCCEEDED, 1, 1)}
    for task in ended:
        check_whole(await install.entries(task.task_id))
    assert len(former) == 2
    assert Signer.load(install.stack.layout.signing_key).key_id not in former


async def test_a_key_in_use_is_not_withdrawn(installation: Installation) -> None:
    folder = installation.stack.layout.signing_key.parent
    used = Signer.load(installation.stack.layout.signing_key).key_id
    for key_id, why in ((used, "is in use"), ("none", "has no key none")):
        done = await tenure("keys", "withdraw", str(folder), key_id, address=installation.stack.gateway_address)
        assert (done.code, why in done.err) == (1, True)
