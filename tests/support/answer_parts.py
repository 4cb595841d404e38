"""What keeps the parts of tools' answers that are not text."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from services.tools.answer_files import AnswerParts
from services.tools.output import OutputStore
from services.tools.workspace.bounds import Bounds
from services.tools.workspace.directories import Workspaces

NO_PARTS: Final = AnswerParts(cast("Any", None), cast("Any", None))
"""For answers of text."""


@contextmanager
def parts_in(root: Path) -> Iterator[AnswerParts]:
    """Keeps parts in workspaces below this directory."""
    with ThreadPoolExecutor(1) as threads:
        yield AnswerParts(OutputStore(Workspaces(root), Bounds(2**28, 10_000)), threads)
