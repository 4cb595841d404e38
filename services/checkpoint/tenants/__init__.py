"""Tenants: their quotas, the windows these look at, and what they were billed.

servicer.py   the methods              store.py      what they do         usage.py    sums of bills
admitting.py  what a submit meets      calls.py      what a reservation meets         warning.py  soft caps, told once
windows.py    what was used lately     defaults.py   of the installation  rows.py     a tenant's row
"""
