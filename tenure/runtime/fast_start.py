"""Starting a program quickly.

with imports_kept():
    from services.worker.main import main
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imports_kept() -> Iterator[None]:
    """No collection of garbage while modules are imported, nor of them afterwards.

    What is imported stays: looking through it again and again takes up to a fifth of a start, and later each full
    collection would walk through all of it once more.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
