"""Tenants: quotas, usage windows, and sums of bills.

servicer.py       TenantService: tenants, their quotas, and their billed usage
quotas.py         the checks of quotas at submits and reservations, and soft cap warnings
near_quotas.py    how much of their quotas the tenants near a cap have used, as a metric
usage_windows.py  sliding sums of what a tenant used
rows.py           the row of a tenant, and the installation's default quotas
api_keys.py       ApiKeyService: stores the keys of clients
"""
