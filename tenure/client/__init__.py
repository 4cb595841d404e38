"""The Python client. For other languages the protos are the client: `buf generate` and go.

async with Client("127.0.0.1:8470") as tenure:
    task = await tenure.submit("find out what our competitors charge")
    async for event in tenure.watch(task.task_id):
        ...
"""

from tenure.client.client import Client

__all__ = ["Client"]
