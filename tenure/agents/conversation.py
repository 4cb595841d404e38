"""Holds the conversation of a task: users' messages reach the agent at its next model call, or after its answer.

Only the agent that the task is for reads them, not those that its tools run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tenure.agents.execution import Execution
from tenure.control.failures import ResultLost, StepFailed
from tenure.domain.control import INTERRUPTED
from tenure.domain.images import MAX_SHOWN, MAX_SHOWN_BYTES, not_shown, with_files

History = TypeVar("History")
TOO_MANY: Final = f"a conversation shows {MAX_SHOWN} images of {MAX_SHOWN_BYTES} bytes together"


@dataclass(frozen=True, slots=True)
class ShownImage:
    """An image that came with the submit or with a message, for the model."""

    media_type: str
    content: bytes


async def new_message(current: Execution) -> str:
    """Returns the messages of users since the last look as one message; "": there are none.

    It names their files. The next `images_to_show` has the images among them.
    """
    async with current.lock:
        messages = await current.work.new_messages()
    for message in messages:
        current.unseen += message.files
    return "\n\n".join(with_files(message.text, message.files) for message in messages)


def is_interrupted(failed: StepFailed) -> bool:
    """Whether a message interrupted a model call, so that the agent makes it again with the message."""
    return failed.failure.error_class == INTERRUPTED.error_class


async def images_to_show(current: Execution, model: str) -> AsyncIterator[ShownImage | str]:
    """Yields the images that came since the last look, or why one is not shown. None, if the model sees no images."""
    files, current.unseen = current.unseen, []
    for file in files:
        if (image := file.image) is None:
            continue
        shown_bytes = current.shown_bytes + file.size_bytes
        if current.shown == MAX_SHOWN or shown_bytes > MAX_SHOWN_BYTES:
            yield not_shown(TOO_MANY)
            continue
        try:
            async with current.lock:
                content = await current.work.image_for(model, file)
        except ResultLost as lost:
            yield not_shown(str(lost))
            continue
        if content is not None:
            current.shown, current.shown_bytes = current.shown + 1, shown_bytes
            yield ShownImage(image.media_type, content)


async def answer_messages(
    current: Execution, prompt: str, run: Callable[[str, History | None], Awaitable[tuple[Any, History]]]
) -> Any:
    """Returns the agent's answer to the newest message. `run`: returns the answer to a prompt, and the history then.

    A message that comes after an answer begins another run, with the history so far. A fork has the messages of the
    other task, so its first runs are those of that task, from the record.
    """
    current.reads_messages = True
    answer, history = await run(prompt, None)
    while message := await new_message(current):
        answer, history = await run(message, history)
    return answer
