"""What can keep the embedded Postgres from running.

EmbeddedPostgresError
├── PostgresMissing      no usable binaries, or no account to run them under
├── DataDirectoryRefused the data directory is another's: in use, of another version, not a cluster
└── PostgresStartFailed  the server was started and did not come up; carries the end of its log
"""

from __future__ import annotations


class EmbeddedPostgresError(Exception):
    """The embedded Postgres cannot run; the message says what to do about it."""


class PostgresMissing(EmbeddedPostgresError):  # noqa: N818  says what happened
    """Something that Postgres needs is not on this machine; the message names it."""


class DataDirectoryRefused(EmbeddedPostgresError):  # noqa: N818  says what happened
    """The data directory cannot be used as it is; nothing in it was changed."""


class PostgresStartFailed(EmbeddedPostgresError):  # noqa: N818  says what happened
    """The server (or initdb) ended or did not answer in time."""

    def __init__(self, message: str, log_tail: str = "") -> None:
        super().__init__(f"{message}\n{log_tail}" if log_tail else message)
        self.log_tail = log_tail
