"""Descriptors that this process has open below a directory. Other descriptors come and go with the tests' threads."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def open_below(top: Path) -> list[Path]:
    """The files and directories of a tree, its root included, of which this process has a descriptor."""
    tree = [top, *top.rglob("*")]
    paths = {(status.st_dev, status.st_ino): path for path in tree if (status := path.lstat())}
    descriptors = []
    for entry in Path("/dev/fd").iterdir():
        with suppress(OSError):  # the descriptor of the listing itself, or one that another thread has closed
            status = os.fstat(int(entry.name))
            descriptors += [paths[key]] if (key := (status.st_dev, status.st_ino)) in paths else []
    return sorted(descriptors)
