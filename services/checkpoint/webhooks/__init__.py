"""Webhooks: the feed of changes, told to endpoints outside.

servicer.py   the methods                       servicer.py        what they do to webhooks
deliveries.py    what they do to deliveries        rows.py         the rows of both
sender_lease.py   the duty that looks for webhooks with something to do, and takes their turns
sender_lease.py      one webhook's turn: read, send, record     feed_reader.py   changes become deliveries, or a gap
deliveries.py  what became of an attempt         sending.py   one request, to where it may go
"""
