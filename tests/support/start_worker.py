"""What pytest-xdist starts as the interpreter of a worker: the worker itself is a fork, see forked_workers.py.

python -P start_worker.py ADDRESS …
"""

from __future__ import annotations

import os
import socket
import sys

from tenure.runtime.forks import ForkClient


def main(address: str) -> int:
    """Returns the exit code of the worker, which has the streams of this process and ends with it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        worker = ForkClient(connection).fork({"environment": dict(os.environ)}, stdin=0, stdout=1, stderr=2)
        assert worker is not None, "the process that imports the test modules has ended"
        for stream in (0, 1):
            os.close(stream)  # the worker alone holds its pipes
        return worker.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
