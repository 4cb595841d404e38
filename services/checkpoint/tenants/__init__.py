"""Tenants: their quotas, the windows these look at, and what they were billed."""
