"""The routes of the chats, which /openapi.json has too."""

from __future__ import annotations

from typing import Any, Final

from edges.chats import ag_ui, ai_chat
from services.gateway.http.api_route import ApiRoute, Bytes
from services.gateway.http.edge import HttpEdge

_STREAM: Final[dict[str, Any]] = {"answer": Bytes("text/event-stream"), "group": "chats"}

CHATS: Final = HttpEdge(
    api_routes=(
        ApiRoute(
            method="POST",
            path="/v1/ai/chat",
            name="chat",
            summary="Begin a turn of a chat of the AI SDK, and stream it",
            handler=ai_chat.chat,
            body=ai_chat.ChatBody,
            prepare=ai_chat.chat_body,
            **_STREAM,
        ),
        ApiRoute(
            method="GET",
            path="/v1/ai/chat/{chat_id}/stream",
            name="resume_chat",
            summary="Stream the running turn of a chat again, from its beginning",
            handler=ai_chat.resume_chat,
            **_STREAM,
        ),
        ApiRoute(
            method="POST",
            path="/v1/ag-ui",
            name="run_ag_ui",
            summary="Run an agent by AG-UI",
            handler=ag_ui.run,
            body=ag_ui.RunBody,
            prepare=ag_ui.run_body,
            **_STREAM,
        ),
    )
)
