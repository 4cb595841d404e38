"""`python -m tests.end_to_end.document_commands`: runs the commands of docs/commands.md and writes down what they say.

An output that says the same as before, apart from ids and times, is left as it is.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from tests.end_to_end.documented import PAGE, Terminal, normal, plain_dev, steps_of, with_outputs


async def regenerate() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with plain_dev(Path(folder)) as installation:
            terminal = Terminal(installation, Path(folder))
            outputs = []
            for step in steps_of(PAGE.read_text()):
                output = await terminal.run(step)
                if not step.is_hidden:
                    outputs.append(step.output if normal(output) == normal(step.output) else output)
                    print(f"$ {step.line}\n{output}", end="", flush=True)  # noqa: T201  it is a command
    PAGE.write_text(with_outputs(PAGE.read_text(), outputs))


if __name__ == "__main__":
    asyncio.run(regenerate())
