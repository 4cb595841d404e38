"""The embedded stack: every part of Tenure as a real process on this machine.

layout.py    where its files are          service.py   one service as a process
stack.py     all of them, in order        addresses.py ports, and dev.json for those who look for them
"""

from tenure.dev.stack.service import ServiceDied, ServiceProcess
from tenure.dev.stack.stack import Stack, StackOptions

__all__ = ["ServiceDied", "ServiceProcess", "Stack", "StackOptions"]
