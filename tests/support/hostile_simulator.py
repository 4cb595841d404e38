"""`python -m tests.support.hostile_simulator`: the model simulator, with models whose answers break the protocol.

The model `sim-hostile-<seed>-<scenario>` plays a scenario, and half of its answers are hostile.
"""

from __future__ import annotations

import re
import sys
from random import Random
from typing import TYPE_CHECKING, Any, Final

from devstack.simulator.__main__ import main
from devstack.simulator.chat_endpoint import ChatEndpoint, chat_events
from devstack.simulator.delivery import stream_events
from devstack.simulator.messages_endpoint import MessagesEndpoint
from devstack.simulator.simulator import ModelSimulator
from tests.support.hostile_answers import hostile_answer, parsed
from tests.support.hostile_chat_answers import hostile_chat_answer, read_chunk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from devstack.simulator.call_log import SimulatedCall
    from devstack.simulator.delivery import RawAnswer, ReplyDelivery
    from devstack.simulator.scenario import Scenario

HOSTILE: Final = re.compile(r"sim-hostile-(\d+)-(.+)")
SHARE_OF_VALID: Final = 0.5


class HostileMessages(MessagesEndpoint):
    """The same model attempt of a step always gets the same answer, so that a seed reproduces a failure."""

    def raw_answer(self, call: SimulatedCall, delivery: ReplyDelivery) -> RawAnswer | None:
        ordered, match = super().raw_answer(call, delivery), HOSTILE.fullmatch(call.model or "")
        if ordered is not None or match is None:
            return ordered
        _, _, attempt = (call.attempt or "").partition("/")
        random = Random(f"{match[1]}/{attempt}")
        if random.random() < SHARE_OF_VALID:
            return None
        call.bill_input(delivery.tokens)
        return self.hostile(random, delivery if random.random() < SHARE_OF_VALID else None)

    def hostile(self, random: Random, delivery: ReplyDelivery | None) -> RawAnswer:
        """`delivery`: the valid answer that is changed; None: a random one."""
        if delivery is None:
            return hostile_answer(random)
        events = stream_events(delivery.reply, delivery.tokens, delivery.deltas)
        return hostile_answer(random, [parsed(event.data) for event in events])

    def find_scenario(self, body: Mapping[str, Any]) -> Scenario:
        return super().find_scenario({**body, "model": HOSTILE.sub(r"sim-\2", body["model"])})


class HostileChat(HostileMessages, ChatEndpoint):
    """The same with chunks."""

    def hostile(self, random: Random, delivery: ReplyDelivery | None) -> RawAnswer:
        if delivery is None:
            return hostile_chat_answer(random)
        chunks = chat_events(delivery.reply, delivery.tokens, delivery.deltas)
        return hostile_chat_answer(random, [read_chunk(chunk.data) for chunk in chunks])


class HostileSimulator(ModelSimulator):
    messages_kind = HostileMessages
    chat_kind = HostileChat


if __name__ == "__main__":
    sys.exit(main(HostileSimulator))
