"""Runs in a sandbox that was started ahead of its program, in place of the module `sitecustomize`.

The interpreter imports that module as the last thing before it opens the program's file. Here it waits until there is
a program, and goes on as any interpreter does: the program finds the same modules, descriptors and environment as one
whose interpreter was started for it. Nothing may be imported here that such an interpreter has not imported by now.
"""

import os
import sys


def wait(channel: int) -> None:
    """Say that the interpreter is there, and return at the word that program and workspace are in their places."""
    os.unlink(__file__)  # noqa: PTH108  # pathlib is not imported by now
    os.write(channel, b"?")
    if os.read(channel, 1) != b"!":
        os._exit(1)  # nobody needs this sandbox any more
    os.close(channel)
    os.chdir("/work")  # the workspace was mounted over the directory that the interpreter was started in
    sys.path_importer_cache.pop("/work", None)
    del sys.modules["sitecustomize"]
    __import__("sitecustomize")  # the workspace's or the system's; that there is none is told as it always is
