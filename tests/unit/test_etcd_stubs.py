from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from services.coordinator.etcd import descriptors, stubs
from tests.support.patience import PATIENCE_SECONDS

_STUB_FILE = Path(stubs.__file__).with_suffix(".pyi")


def _declared_classes() -> list[ast.ClassDef]:
    tree = ast.parse(_STUB_FILE.read_text())
    return [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


@pytest.mark.parametrize("declared", _declared_classes(), ids=lambda declared: declared.name)
def test_every_declared_field_and_method_exists(declared: ast.ClassDef) -> None:
    real = getattr(stubs, declared.name)
    names = {ast.unparse(each.target) for each in declared.body if isinstance(each, ast.AnnAssign)}
    if declared.name.endswith("Stub"):
        services = stubs.RangeRequest.DESCRIPTOR.file.services_by_name
        assert names <= set(services[declared.name.removesuffix("Stub")].methods_by_name)
    else:
        enum_values = set(real.DESCRIPTOR.enum_values_by_name) | {
            value for enum in real.DESCRIPTOR.enum_types for value in enum.values_by_name
        }
        assert names <= set(real.DESCRIPTOR.fields_by_name) | enum_values


def test_transactions_nest_in_one_request() -> None:
    inner = stubs.TxnRequest(success=[stubs.RequestOp(request_put=stubs.PutRequest(key=b"k", value=b"v", lease=7))])
    outer = stubs.TxnRequest(success=[stubs.RequestOp(request_txn=inner)])
    again = stubs.TxnRequest.FromString(outer.SerializeToString())
    assert again.success[0].request_txn.success[0].request_put.lease == 7


def test_leases_watches_status_and_snapshots_survive_the_wire() -> None:
    for message in (
        stubs.LeaseGrantRequest(TTL=5),
        stubs.LeaseKeepAliveResponse(ID=2**62, TTL=5),
        stubs.WatchRequest(create_request=stubs.WatchCreateRequest(key=b"k", start_revision=3, progress_notify=True)),
        stubs.WatchResponse(canceled=True, compact_revision=9),
        stubs.StatusResponse(version="3.5.1", leader=1),
        stubs.SnapshotResponse(remaining_bytes=3, blob=b"abc"),
    ):
        assert type(message).FromString(message.SerializeToString()) == message


def test_asking_for_progress_has_the_number_that_etcd_gives_it() -> None:
    request = stubs.WatchRequest(progress_request=stubs.WatchProgressRequest())
    assert request.SerializeToString() == b"\x1a\x00"  # field 3, length-delimited, empty


def test_fragments_have_the_numbers_that_etcd_gives_them() -> None:
    assert stubs.WatchCreateRequest(fragment=True).SerializeToString() == b"\x40\x01"  # field 8
    assert stubs.WatchResponse(fragment=True).SerializeToString() == b"\x38\x01"  # field 7


def test_the_packages_own_code_is_never_run() -> None:
    program = (
        "import sys; from services.coordinator.etcd import descriptors, stubs;"
        "again = descriptors.EtcdApi();"
        "assert again.message('mvccpb.KeyValue') is again.message('mvccpb.KeyValue');"
        "kind = again.message('mvccpb.KeyValue');"
        "assert kind(key=b'k').SerializeToString() == stubs.KeyValue(key=b'k').SerializeToString();"
        "assert 'etcd3' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=PATIENCE_SECONDS)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(descriptors.EtcdStubsError, match=r"etcd3==0\.12\.0"):
        descriptors.EtcdApi()


@pytest.mark.parametrize(("content", "expected"), [(None, "has no kv_pb2.py"), ("x = 1\n", "no serialized descriptor")])
def test_a_changed_package_is_named(
    content: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etcdrpc").mkdir()
    if content is not None:
        (tmp_path / "etcdrpc" / "kv_pb2.py").write_text(content)
    spec = importlib.machinery.ModuleSpec("etcd3", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(descriptors.EtcdStubsError, match=expected):
        descriptors.EtcdApi()


def test_an_unknown_message_or_service_is_named() -> None:
    api = descriptors.EtcdApi()
    with pytest.raises(descriptors.EtcdStubsError, match=r"etcdserverpb\.Nothing"):
        api.message("etcdserverpb.Nothing")
    with pytest.raises(descriptors.EtcdStubsError, match=r"etcdserverpb\.Nothing"):
        api.stub("etcdserverpb.Nothing")
