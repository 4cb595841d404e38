"""A program that uses one SyncClient before and after its forks, as with gunicorn --preload and multiprocessing.

It prints one line of JSON: the exit statuses of the children, and the sequences of a stream that was open in a thread.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
from typing import Final

from tenure import SyncClient, Unavailable

FORKS: Final = 20
CHILD_SECONDS: Final = 60
CLIENT: Final = SyncClient()


def task_ids(_: int = 0) -> int:
    """Reads the tasks with the client of the parent, and in a child of this process."""
    assert CLIENT.tasks_page().tasks
    return forked()


def forked() -> int:
    """Returns the exit status of a child that used the client."""
    process_id = os.fork()
    if process_id == 0:
        threading.Timer(CHILD_SECONDS, os._exit, (9,)).start()  # a child that hangs ends, too
        assert CLIENT.tasks_page().tasks
        with SyncClient() as another:
            assert another.tasks_page().tasks
        sys.stdout.flush()
        os._exit(0)
    return os.waitpid(process_id, 0)[1]


def main() -> None:
    """Forks while a stream is open and an error of a failed call is kept."""
    try:
        SyncClient("127.0.0.1:1").tasks_page()
    except Unavailable as error:
        kept = error
    task = CLIENT.submit("follow me", model="sim-e2e-paced")
    seen: list[int] = []
    begun = threading.Event()

    def follow() -> None:
        for event in task.events():
            if event.sequence is not None:
                seen.append(event.sequence)
            begun.set()

    watcher = threading.Thread(target=follow)
    watcher.start()
    begun.wait()
    statuses = [forked() for _ in range(FORKS)]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        statuses += pool.map(task_ids, range(4))
    watcher.join()
    result = {"statuses": statuses, "seen": seen, "entries": len(list(task.entries())), "kept": kept.reason}
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
