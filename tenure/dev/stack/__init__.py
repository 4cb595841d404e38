"""The embedded stack: every part of Tenure as a real process on this machine.

stack.py     all of them, in order                 options.py       what it is asked to be
service.py   one service as a process (child.py)   simulator.py     the model
stores.py    Postgres and etcd, ours or yours      environments.py  what each service is told
supervisor.py starts again what dies               layout.py        where its files are; lock.py, addresses.py
"""

from tenure.dev.stack.errors import FolderBusy, ServiceDied, StackError
from tenure.dev.stack.options import StackOptions
from tenure.dev.stack.service import ServiceProcess
from tenure.dev.stack.stack import Stack

__all__ = ["FolderBusy", "ServiceDied", "ServiceProcess", "Stack", "StackError", "StackOptions"]
