"""The Python client of the public API. For other languages, generate a client from the protos with `buf generate`.

    async with Client("127.0.0.1:8470") as tenure:
        task = await tenure.submit("find out what our competitors charge")
        async for event in tenure.watch(task.task_id):
            ...

The files:

client.py          Client: the connection, retries, and the calls about tasks, workers and tools
task_calls.py      the calls about files and waits
admin_calls.py     the calls about calls in doubt, requeues, budgets, close-outs and pruning
service_calls.py   the calls about schedules, tenants and webhooks
leases.py          the calls about named leases, and HeldLease, which renews a lease
verification.py    TokenVerifier: checks fencing tokens in a service that guards its own writes
reconnect.py       how a broken stream is resumed
replays.py         the ledger of a recorded run from a file, and the submit of its replay

A new call belongs in the file of its noun. Send it with `_call`, which retries it.
"""

from tenure.client.client import Client

__all__ = ["Client"]
