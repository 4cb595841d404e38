"""LeaseService: leases of named resources, for backends that are not workers.

granting.py   acquire and transfer: claim in etcd, register in the ledger, and only then a token
granting.py    renew and release                    watching.py   what happens, from a revision on
servicer.py    who holds what                       servicer.py   claims that were never registered
servicer.py   the methods                          messages.py   values ↔ messages
messages.py     which lease a request means          services/coordinator/ledger_client.py     the checkpoint service
"""
