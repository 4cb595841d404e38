"""Tenants: their quotas, the windows these look at, and what they were billed.

servicer.py   the methods              servicer.py      what they do         servicer.py    sums of bills
quotas.py  what a submit meets      quotas.py      what a reservation meets         quotas.py  soft caps, told once
usage_windows.py    what was used lately     rows.py   of the installation  rows.py     a tenant's row
"""
