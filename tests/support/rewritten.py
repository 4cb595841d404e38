"""Rewrites the asserts of all test modules before a process of the run imports them (see import_tests.py).

In a new checkout that takes 15 s of processor time, and all cores share it here. pytest has no call for that, so this
uses its own functions.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import pytest
from _pytest.assertion import rewrite

A_CHUNK: Final = 8


def pytest_sessionstart(session: pytest.Session) -> None:
    """Runs in the process that starts the others (`-n`), which imports no test module itself."""
    config = session.config
    if not getattr(config.option, "numprocesses", 0) or hasattr(config, "workerinput"):
        return
    modules = [module for module in _modules(config) if rewrite._read_pyc(module, _cache_of(module)) is None]
    if len(modules) <= A_CHUNK:
        return
    cores = os.cpu_count() or 1
    with ProcessPoolExecutor(cores, get_context("fork"), initializer=_start, initargs=(config,)) as processes:
        for _ in processes.map(_rewrite, modules, chunksize=A_CHUNK):
            pass


def _modules(config: pytest.Config) -> list[Path]:
    places = [(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args]
    return sorted({module for place in places for module in ([place] if place.is_file() else place.rglob("test_*.py"))})


def _cache_of(module: Path) -> Path:
    return rewrite.get_cache_dir(module) / f"{module.stem}{rewrite.PYC_TAIL}"


_config: pytest.Config


def _start(config: pytest.Config) -> None:
    global _config  # noqa: PLW0603  of a forked process
    _config = config


def _rewrite(module: Path) -> None:
    cache = _cache_of(module)
    cache.parent.mkdir(parents=True, exist_ok=True)
    source, code = rewrite._rewrite_test(module, _config)
    rewrite._write_pyc(_config.stash[rewrite.assertstate_key], code, source, cache)
