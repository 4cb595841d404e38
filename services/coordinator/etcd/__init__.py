"""A client of etcd for one event loop, on grpc.aio. It knows nothing of this project's keys.

client.py         EtcdClient: keys, transactions, leases, watches
transactions.py   transactions and their results as values
calls.py          one call: deadline, errors, retries of reads
keepalive.py      renewals of leases over one stream
watch.py          watches that survive broken connections
endpoints.py      the members of the cluster and their channels
stubs.py          the messages and stubs of etcd's API
descriptors.py    how they are built from the installed `etcd3` package
"""
