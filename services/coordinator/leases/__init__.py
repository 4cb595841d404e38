"""LeaseService: leases of named resources, for backends that are not workers.

granting.py   acquire and transfer: claim in etcd, register in the ledger, and only then a token
holding.py    renew and release                    watching.py   what happens, from a revision on
listing.py    who holds what                       sweeping.py   claims that were never registered
servicer.py   the methods                          messages.py   values ↔ messages
target.py     which lease a request means          ledger.py     the checkpoint service
"""
