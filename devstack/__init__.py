"""The development stack: all services and stores of Tenure as processes on this machine (`tenure dev`).

options.py           the options of a stack, its files, its ports, and the environment of each service
stack.py             starts all parts in the order of dependency, and stops them
programs.py          checks before the start that the machine has Postgres and etcd
clock.py             a clock of the ledger that tests move
data_dir.py          dev.json with the addresses of a running stack, and the lock of the data directory

child_process.py     one child process with its log: start, freeze, kill, drain, restart; StackError
watchdog.py          ends the processes and removes the folders of a process that was killed
listening.py         which process listens at a port (Linux)
service_forks.py     starts services as forks of one process that has imported them
service_process.py   the services and the simulator as child processes
supervisor.py        restarts parts that die, for `tenure dev`
all_services.py      one of each service without stores, for `tenure serve all`

stores.py            Postgres and etcd of a stack: embedded, or those that the options name
postgres_cluster.py  the data directory of the embedded Postgres: account, binaries, initdb, lock
postgres_process.py  the server process of the embedded Postgres
etcd.py              the embedded etcd, as one member or as a cluster

search_stub.py       a web search without a network
simulator/           the model simulator, which speaks the model provider's API and plays scenarios

What to touch when a service gets a setting that the stack must set: `_checkpoint`, `_tools`, … in options.py.
"""

from __future__ import annotations

from devstack.child_process import FolderBusy, ServiceDied, StackError
from devstack.options import StackOptions
from devstack.service_process import ServiceProcess
from devstack.stack import Stack

__all__ = [
    "FolderBusy",
    "ServiceDied",
    "ServiceProcess",
    "Stack",
    "StackError",
    "StackOptions",
]
