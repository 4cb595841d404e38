"""Imports the server's packages (`services`, `edges`, `devstack`, `checker`), and reports a missing extra.

    with server_packages("`tenure dev`", extra="dev"):
        from devstack import Stack

In the repository they are top-level packages. In the wheel they are below `tenure/_server`: names as common as
`services` do not belong into the environments of users. So only a process that runs this module can import them, and
there they come before packages of the same names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).with_name("_server")
"""Exists in the wheel only."""
_OWN: Final = frozenset({"tenure", "services", "edges", "devstack", "checker"})


class MissingExtra(ImportError):  # noqa: N818  the name says what happened
    """A part of Tenure needs packages of an extra that is not installed. The message says which."""

    def __init__(self, part: str, extra: str, package: str) -> None:
        super().__init__(
            f"{part} needs the extra: pip install 'tenure[{extra}]' (the package {package} is not installed)",
            name=package,
        )
        self.extra = extra


@contextmanager
def server_packages(part: str, *, extra: str, keep: bool = True) -> Iterator[None]:
    """Makes the server's packages importable, from now on. `part`: what imports them, for the message.

    `keep` False: only inside the block. What was imported there stays, with its submodules; the program of a user goes
    on, whose own packages must be found first.

    Raises MissingExtra if the block imports a package of others that is not installed.
    """
    is_added = _FOLDER.is_dir() and str(_FOLDER) not in sys.path
    if is_added:
        sys.path.insert(0, str(_FOLDER))
    try:
        with extra_packages(part, extra=extra):
            yield
    finally:
        if is_added and not keep:
            sys.path.remove(str(_FOLDER))


@contextmanager
def extra_packages(part: str, *, extra: str) -> Iterator[None]:
    """Reports an extra that is not installed. `part`: what imports its packages, for the message.

    Raises MissingExtra if the block imports a package of others that is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or package in _OWN:
            raise  # a mistake in the code, which no extra mends
        raise MissingExtra(part, extra, package) from error
