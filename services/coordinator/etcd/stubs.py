"""The messages and stubs of etcd's gRPC API for grpc.aio.

Their types are in stubs.pyi; descriptors.py builds them.
"""

from services.coordinator.etcd.descriptors import EtcdApi

_API = EtcdApi()

KeyValue = _API.message("mvccpb.KeyValue")
Event = _API.message("mvccpb.Event")
ResponseHeader = _API.message("etcdserverpb.ResponseHeader")

RangeRequest = _API.message("etcdserverpb.RangeRequest")
RangeResponse = _API.message("etcdserverpb.RangeResponse")
PutRequest = _API.message("etcdserverpb.PutRequest")
PutResponse = _API.message("etcdserverpb.PutResponse")
DeleteRangeRequest = _API.message("etcdserverpb.DeleteRangeRequest")
DeleteRangeResponse = _API.message("etcdserverpb.DeleteRangeResponse")
Compare = _API.message("etcdserverpb.Compare")
RequestOp = _API.message("etcdserverpb.RequestOp")
ResponseOp = _API.message("etcdserverpb.ResponseOp")
TxnRequest = _API.message("etcdserverpb.TxnRequest")
TxnResponse = _API.message("etcdserverpb.TxnResponse")
CompactionRequest = _API.message("etcdserverpb.CompactionRequest")
CompactionResponse = _API.message("etcdserverpb.CompactionResponse")

WatchRequest = _API.message("etcdserverpb.WatchRequest")
WatchCreateRequest = _API.message("etcdserverpb.WatchCreateRequest")
WatchCancelRequest = _API.message("etcdserverpb.WatchCancelRequest")
WatchProgressRequest = _API.message("etcdserverpb.WatchProgressRequest")
WatchResponse = _API.message("etcdserverpb.WatchResponse")

LeaseGrantRequest = _API.message("etcdserverpb.LeaseGrantRequest")
LeaseGrantResponse = _API.message("etcdserverpb.LeaseGrantResponse")
LeaseRevokeRequest = _API.message("etcdserverpb.LeaseRevokeRequest")
LeaseRevokeResponse = _API.message("etcdserverpb.LeaseRevokeResponse")
LeaseKeepAliveRequest = _API.message("etcdserverpb.LeaseKeepAliveRequest")
LeaseKeepAliveResponse = _API.message("etcdserverpb.LeaseKeepAliveResponse")
LeaseTimeToLiveRequest = _API.message("etcdserverpb.LeaseTimeToLiveRequest")
LeaseTimeToLiveResponse = _API.message("etcdserverpb.LeaseTimeToLiveResponse")

StatusRequest = _API.message("etcdserverpb.StatusRequest")
StatusResponse = _API.message("etcdserverpb.StatusResponse")
SnapshotRequest = _API.message("etcdserverpb.SnapshotRequest")
SnapshotResponse = _API.message("etcdserverpb.SnapshotResponse")

KVStub = _API.stub("etcdserverpb.KV")
WatchStub = _API.stub("etcdserverpb.Watch")
LeaseStub = _API.stub("etcdserverpb.Lease")
MaintenanceStub = _API.stub("etcdserverpb.Maintenance")
