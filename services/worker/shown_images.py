"""Puts the images of a conversation into a request: the ledger has references, and providers take the bytes."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from services.worker.kept_content import KeptContents
from tenure.control import ResultLost
from tenure.domain.conversation import text_block
from tenure.domain.errors import TryLater
from tenure.domain.images import REFUSED, images_in, left_out, not_shown, with_parts
from tenure.domain.retry import FailureClass
from tenure.model_providers.client import ModelCallFailed, ModelRequest
from tenure.model_providers.message_texts import as_json
from tenure.runtime.rpc.status import PeerFailed

NO_LONGER: Final = "it is an older one of many: ask for it again to see it"


@dataclass(frozen=True, slots=True)
class ShownImages:
    """The images of one task's conversation. `sees`: whether its model sees images; else it reads their names only."""

    contents: KeptContents
    sees: bool

    async def shown(self, request: ModelRequest, refused: Collection[str] = ()) -> ModelRequest:
        """Returns the request with the images in it. `refused`: the digests of images that the provider refused.

        Raises ModelCallFailed when the tool service, which has them, does not answer; nothing was sent then. Raises
        Fenced.
        """
        sources = list(images_in(request.messages))
        if not sources:
            return request
        older = left_out(sources)
        parts = [
            await self._part(source, NO_LONGER if index < older else REFUSED if source["digest"] in refused else "")
            for index, source in enumerate(sources)
        ]
        messages = with_parts(request.messages, parts)
        return replace(request, messages=messages, texts=_texts(request, messages))

    async def _part(self, source: Mapping[str, Any], why_not: str) -> dict[str, Any] | None:
        if not self.sees:
            return None
        if why_not:
            return text_block(not_shown(why_not))
        try:
            content = await self.contents.read(source["path"], source["digest"])
        except ResultLost as lost:
            return text_block(not_shown(str(lost)))
        except (TryLater, PeerFailed) as error:
            failure = ModelCallFailed(FailureClass.CONNECTION, f"the tool service did not return an image: {error}")
            failure.was_sent = False
            raise failure from error
        data = b64encode(content).decode()
        return {"type": "image", "source": {"type": "base64", "media_type": source["media_type"], "data": data}}


def _texts(request: ModelRequest, messages: list[dict[str, Any]]) -> list[str]:
    """Returns the messages as JSON: written before, or anew where an image was put in."""
    if not request.texts:
        return []
    pairs = zip(messages, request.messages, request.texts, strict=True)
    return [text if message is before else as_json(message) for message, before, text in pairs]
