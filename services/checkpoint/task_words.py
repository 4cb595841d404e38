"""The words by which a search finds a task, written in the transaction that knows its text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.checkpoint.queries import QUERIES
from tenure.domain.search import stored_words
from tenure.runtime.store.sql_arrays import Texts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenure.runtime.store.postgres import Connection


async def add_words(connection: Connection, texts: Iterable[tuple[str, str, str]]) -> None:
    """Adds the words of texts, each of a task and its tenant: (task id, tenant, text). A text may have none."""
    words = [(task_id, stored) for task_id, tenant, text in texts if (stored := stored_words(tenant, text))]
    if words:
        arrays = {"task_ids": Texts(task_id for task_id, _ in words), "words": Texts(stored for _, stored in words)}
        await connection.execute(QUERIES.add_words, arrays)
