"""The Python client of the public API. For other languages, generate a client from the protos with `buf generate`.

    async with Client("127.0.0.1:8470") as tenure:
        task = await tenure.submit("find out what our competitors charge")
        async for event in tenure.watch(task.task_id):
            ...

The files:

client.py          Client: the stubs of all services, lists by pages, and the calls about tasks
retries.py         the channel that retries calls
files.py           reads files of workspaces
leases.py          HeldLease, which renews a lease; the events of leases
receipts.py        reads public keys, and checks the signatures of receipts with them
verification.py    TokenVerifier: checks fencing tokens in a service that guards its own writes
reconnect.py       how a broken stream is resumed
replays.py         the ledger of a recorded run from a file, and the submit of its replay

Any method is called by its stub: `await client.agents.GetAgent(pb.GetAgentRequest(name="greeter"))`.
"""

from tenure.client.client import Client

__all__ = ["Client"]
