"""Every method of every service gets hostile messages: answers are typed and in time, and others do not suffer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.calling import call, check_answer
from tests.fuzz.messages import messages
from tests.fuzz.methods import METHODS, Method
from tests.fuzz.mutated import damaged
from tests.fuzz.profile import examples
from tests.fuzz.world import World

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(3600), pytest.mark.fuzz]

FRAMES = 3
"""Most messages of one stream."""


@pytest.mark.parametrize("method", METHODS, ids=str)
@examples(1)
@given(data=st.data())
async def test_every_request_gets_a_typed_result(world: World, method: Method, data: Any) -> None:
    most = FRAMES if method.streams_in else 1
    made = messages(method.descriptor.input_type, await world.known())
    sent = data.draw(st.lists(made, min_size=1, max_size=most))
    answer = await call(world.bare[method.process], method, sent)
    world.tally.codes[str(method), answer.code.name] += 1
    check_answer(method, sent, answer)
    world.check_processes()


@pytest.mark.parametrize("method", METHODS, ids=str)
@examples(1)
@given(data=st.data())
async def test_any_bytes_get_a_typed_result(world: World, method: Method, data: Any) -> None:
    made = damaged(messages(method.descriptor.input_type, await world.known()))
    sent = data.draw(st.lists(made, min_size=1, max_size=FRAMES if method.streams_in else 1))
    answer = await call(world.bare[method.process], method, sent)
    world.tally.codes[str(method), answer.code.name] += 1
    check_answer(method, sent, answer)
    world.check_processes()
