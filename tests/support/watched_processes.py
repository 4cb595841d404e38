"""Whatever process a test starts ends with pytest, also when pytest is killed: `devstack.watchdog` watches them all."""

from __future__ import annotations

import subprocess
from typing import Any

from devstack import watchdog


def pytest_configure() -> None:
    start = subprocess.Popen.__init__

    def start_watched(self: subprocess.Popen[Any], *args: Any, **options: Any) -> None:
        start(self, *args, **options)
        if self.args != watchdog.COMMAND:
            watchdog.watch_process(self.pid)

    subprocess.Popen.__init__ = start_watched  # type: ignore[method-assign]  # that of asyncio ends up here, too
