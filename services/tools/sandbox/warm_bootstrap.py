"""Waits for the program in a warm sandbox. Runs there in place of the module `sitecustomize`.

The interpreter imports `sitecustomize` as its last step before it opens the program's file. This module waits until
there is a program; then the interpreter continues as usual. The program finds the same modules, descriptors and
environment as in a cold sandbox. Therefore this module may import only modules that an interpreter in a cold sandbox
has imported at this point.
"""

import os
import sys


def wait(channel: int) -> None:
    """Tells the service that the interpreter is ready, and returns once the program and the workspace are in place."""
    os.unlink(__file__)  # noqa: PTH108  # pathlib is not imported yet
    os.write(channel, b"?")
    if os.read(channel, 1) != b"!":
        os._exit(1)  # the service discards this sandbox
    os.close(channel)
    os.chdir("/work")  # the workspace was mounted over the interpreter's current directory
    sys.path_importer_cache.pop("/work", None)
    del sys.modules["sitecustomize"]
    __import__("sitecustomize")  # the workspace's or the system's; when there is none, the import fails as usual
