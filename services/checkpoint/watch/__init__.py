"""Watches: from a committed transaction to every client and coordinator that waits for it.

announcement.py      what a transaction changed for watchers, made from its drafts
ledger_metrics.py    counts what a durable transaction did
appended_entries.py  the entries that a transaction added to one task, kept for watchers
notifications.py     passes announcements to the other replicas (NOTIFY and LISTEN), with polling as backstop
hub.py               the watchers of this process, and the distribution of announcements to them
task_stream.py       WatchEntries and WatchQueue: the streams of one task and of the queue
change_feed.py       the change feed: cursors, FeedReader and pruning
change_stream.py     WatchChanges: the stream of a tenant's changes
"""
