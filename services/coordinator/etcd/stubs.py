"""The messages and stubs of etcd's gRPC API for grpc.aio.

Their types are in stubs.pyi; descriptors.py builds them.
"""

from typing import Any

from services.coordinator.etcd.descriptors import EtcdApi

_API = EtcdApi()


def __getattr__(name: str) -> Any:
    """Builds a message or a stub at its first use."""
    if name.startswith("_"):
        raise AttributeError(name)
    package = "mvccpb" if name in {"KeyValue", "Event"} else "etcdserverpb"
    service = name.removesuffix("Stub")
    made = _API.message(f"{package}.{name}") if service == name else _API.stub(f"{package}.{service}")
    globals()[name] = made
    return made
