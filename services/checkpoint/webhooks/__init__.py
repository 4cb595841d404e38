"""Webhooks: send changes to endpoints of users.

servicer.py      WebhookService: create, pause, resume, rotate and delete webhooks
sender_lease.py  the duty that takes sender leases; one lease reads the feed, sends and records
event_writer.py  reads changes and writes deliveries, or records a webhook gap
people.py        which changes become messages to people; the summary of late changes
sending.py       one attempt: a signed request, or what the notifier makes of it; the settings of webhooks
email_quota.py   takes due e-mails as far as the tenant's quota allows; the others wait
notifier.py      what edges do for the webhooks of people: e-mail and Slack (edges/notifications)
smtp_settings.py the SMTP server, and where e-mail may go
deliveries.py    records the results of attempts; lists, tests, replays and discards deliveries
rows.py          the rows of webhooks and deliveries
sealing.py       encrypts the secrets of webhooks again, after their key changed
"""
