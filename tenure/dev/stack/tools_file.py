"""The file of further tools, looked at before anything is started because of it."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tenure.dev.stack.errors import StackError

_SECONDS: Final = 120.0


async def check_tools_file(environment: Mapping[str, str], folder: Path) -> None:
    """With the tool service's environment, by the service itself. Raises StackError with all that is wrong with it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "services.tools", "config"),
        env=dict(environment),
        cwd=folder,
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
        start_new_session=True,  # Ctrl-C in the terminal is for us
    )
    try:
        async with asyncio.timeout(_SECONDS):
            _, said = await process.communicate()
    except TimeoutError:
        raise StackError(f"the tools could not be looked at within {_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise StackError(f"nothing is started: {said.decode(errors='replace').strip()}")
