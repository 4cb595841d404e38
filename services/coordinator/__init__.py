"""The coordinator: decides in etcd which worker may try to run a task. Its replicas have no leader.

The files, in the order in which data flows:

main.py                how the parts and the duties are put together
settings.py            the settings
servicer.py            CoordinatorService: sessions of workers, requests of operators
sessions/              attached sessions: Hello, the stream, takeover
pools.py               the file of pools, applied to the sessions of this replica
claims/                offers to claims to grants; the end of claims; pending endings
generation.py          the generation: no grants until the ledger and etcd agree on it
lease_store/           the keys in etcd
etcd/                  the client of etcd
ledger_client.py       the client of the checkpoint service
tools_client.py        the client of the tool service
worker_agents.py       registers the agents of workers in the registries of their tenants
operator_requests.py   lists of workers and claims, transfer, drain
in_doubt_waits.py      ends waits for resolutions that are no longer needed
stops.py               gives the tool service the ledger's stops
pruned_tasks.py        makes the tool service forget pruned tasks
receipts.py            signs receipts of effects, from the records of both stores
leases/                LeaseService: named leases of other systems
"""
