"""The sessions that are attached to this replica.

session_attach.py   Hello: a new session or a former one; the attached sessions
takeover.py         after a broken stream: the end of the session, and of claims whose tasks have a grace of their own
live_addresses.py   which addresses of workers gateways may connect to
session_stream.py   one stream: renewals, slots and releases in; grants and revocations out
session.py          one attached session: its slots, its claims, its progress, its outbox
lease_risk.py       how near their leases are to the end, and how long held tasks made no progress, as metrics
lease_end.py        what the ledger keeps of the lease of a lost claim
own_session.py      the coordinator's own session, for the claims of close-outs
"""
