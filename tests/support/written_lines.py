"""The lines of a file to which another process writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def whole_lines(path: Path) -> list[str]:
    """Returns the lines that are there whole: the last one may be on its way. A missing file has none."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def whole_records(path: Path) -> list[dict[str, Any]]:
    """The same of a file with a JSON object in each line."""
    return [json.loads(line) for line in whole_lines(path)]
