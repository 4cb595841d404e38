"""Puts users' messages into the input of the SDK's runs: the SDK has no place for a message that comes during a run."""

from __future__ import annotations

import inspect
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agents import Agent, RunConfig
from agents.items import TResponseInputItem
from agents.models import get_default_model
from agents.run_config import CallModelData, ModelInputData
from openai.types.responses.response_input_content_param import ResponseInputContentParam

from tenure.agents.conversation import ShownImage, images_to_show, new_message
from tenure.agents.execution import Execution
from tenure.agents.openai_agents.models import ledger_model, name_of


@dataclass(frozen=True, slots=True)
class FinishedTurn:
    """The agent that gave an answer, and the items of the conversation then."""

    agent: Agent[Any]
    items: list[TResponseInputItem]

    def then(self, message: str) -> list[TResponseInputItem]:
        """Returns the input of the next run."""
        return [*self.items, _user_item(message)]


class MessagesOfUsers:
    """The messages that came during one run. `config`: of the run, in whose requests they are."""

    def __init__(self, current: Execution, config: RunConfig) -> None:
        self._current, self._filter = current, config.call_model_input_filter
        self._messages: list[tuple[int, TResponseInputItem]] = []
        self.config = replace(config, call_model_input_filter=self._input)

    async def _input(self, data: CallModelData[Any]) -> ModelInputData:
        """Returns the input of a request with all messages of the run, those that came just now at the end."""
        given = data.model_data
        if not self._current.is_nested:  # an agent that is a tool has this configuration, too
            self._current.make_input = partial(self._input, data)
            if message := await new_message(self._current):
                self._messages.append((len(given.input), _user_item(message)))
            images = images_to_show(self._current, ledger_model(_model_of(data.agent, self.config)))
            if parts := [_part(image) async for image in images]:
                self._messages.append((len(given.input), _user_item(parts)))
            given = replace(given, input=self.placed(given.input))
        if self._filter is None:
            return given
        filtered = self._filter(replace(data, model_data=given))
        return await filtered if inspect.isawaitable(filtered) else filtered

    def placed(self, items: Sequence[TResponseInputItem]) -> list[TResponseInputItem]:
        """Returns the items of the run with the messages, each after as many items as it came after."""
        placed = list(items)
        for index, message in reversed(self._messages):
            placed.insert(_between_calls(items, index), message)
        return placed


def _between_calls(items: Sequence[TResponseInputItem], index: int) -> int:
    """Returns the first place from `index` on that is not between a call and its output.

    A handoff may make the items of a run anew, so that a message has another place among them.
    """
    open_calls = set[Any]()
    for place, item in enumerate(items):
        if place >= index and not open_calls:
            return place
        kind = str(item.get("type", "")) if isinstance(item, Mapping) else ""
        if kind.endswith("_call_output"):
            open_calls.discard(item.get("call_id"))
        elif kind == "function_call":
            open_calls.add(item.get("call_id"))
    return len(items)


def _user_item(content: str | list[ResponseInputContentParam]) -> TResponseInputItem:
    return {"role": "user", "content": content}


def _model_of(agent: Agent[Any], config: RunConfig) -> str:
    model = config.model or agent.model or get_default_model()
    return model if isinstance(model, str) else name_of(model)


def _part(image: ShownImage | str) -> ResponseInputContentParam:
    if isinstance(image, str):
        return {"type": "input_text", "text": image}
    data = b64encode(image.content).decode()
    return {"type": "input_image", "image_url": f"data:{image.media_type};base64,{data}", "detail": "auto"}
