"""Webhooks: the feed of changes, told to endpoints outside.

servicer.py   the methods                       store.py        what they do to webhooks
letters.py    what they do to deliveries        rows.py         the rows of both
dispatching.py   the duty that looks for webhooks with something to do, and takes their turns
turns.py      one webhook's turn: read, send, record     reading.py   changes become deliveries, or a gap
recording.py  what became of an attempt         sending.py   one request, to where it may go
"""
