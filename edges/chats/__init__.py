"""Chats of the AI SDK and of AG-UI. See README.md."""
