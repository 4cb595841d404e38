"""Serves LeaseService: leases of named resources, for backends that are not workers.

servicer.py    the methods, the list of leases, the sweep of unregistered leases; `lease_service` builds them all
messages.py    the lease that a request means, and leases as messages, with a token for the holder only
granting.py    acquire and transfer (claim in etcd, register in the ledger, then a token); renew and release
watching.py    WatchLeases: changes after a revision

The keys are in lease_store/named_leases.py, the ledger's client is LeaseGrantClient in ledger_client.py.
"""
