"""The release that runs. Its metadata takes 20 ms to parse, so it is read once in a process, before its forks."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

VERSION: Final = version("tenure")
