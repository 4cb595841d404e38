"""The embedded stack: every part of Tenure as a real process on this machine.

stack.py     all of them, in order                 options.py       what it is asked to be
service_process.py   one service as a process (child_process.py)   service_process.py     the model
stores.py    Postgres and etcd, ours or yours      options.py  what each service is told
listening.py  which process listens at a port
supervisor.py starts again what dies               options.py        where its files are; data_dir.py, options.py
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
