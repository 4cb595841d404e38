"""Golden files: texts for people, whole. `TENURE_WRITE_GOLDEN=1` writes them, and a review reads the difference."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "golden"


def compare_with_golden(name: str, texts: Mapping[str, str]) -> None:
    """Compares the texts with the file, in which each stands below its title."""
    stripped = {title: "\n".join(line.rstrip() for line in text.splitlines()) for title, text in texts.items()}
    whole = "\n\n".join(f"## {title}\n{text}" for title, text in stripped.items()) + "\n"
    file = FOLDER / name
    if os.environ.get("TENURE_WRITE_GOLDEN"):
        file.write_text(whole, encoding="utf-8")
    assert whole == file.read_text(encoding="utf-8"), "TENURE_WRITE_GOLDEN=1 writes the file"
