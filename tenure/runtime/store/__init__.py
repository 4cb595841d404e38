"""Postgres: connections, transactions, statements and batches.

postgres.py               the pool, sessions, transactions, and psycopg's errors as domain errors
dedicated_connection.py   a connection for one writing loop
pipelined_transaction.py  transactions whose statements travel together
batching.py               group commit: many items in one write
barrier.py                waits for the transactions that began before a commit
sql.py                    named statements and migrations
sql_arrays.py             packed arrays as parameters of hot statements
runner_row.py             renews the row by which the other replicas see that a runner lives
"""
