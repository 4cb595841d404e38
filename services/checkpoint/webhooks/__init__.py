"""Webhooks: send changes to endpoints of users.

servicer.py      WebhookService: create, pause, resume, rotate and delete webhooks
sender_lease.py  the duty that takes sender leases; one lease reads the feed, sends and records
feed_reader.py   turns changes into deliveries, or records a webhook gap
sending.py       one signed request to an endpoint, and the settings of webhooks
deliveries.py    records the results of attempts; lists, tests, replays and discards deliveries
rows.py          the rows of webhooks and deliveries
"""
