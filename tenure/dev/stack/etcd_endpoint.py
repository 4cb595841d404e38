"""An etcd that is not ours: is it there, and which one is it?"""

from __future__ import annotations

import asyncio
import http.client
import json

from tenure.dev.stack.errors import StackError

ANSWER_SECONDS = 5.0


async def endpoint_version(endpoints: str) -> str:
    """The release of the first endpoint, such as `3.5.16`. Raises StackError when it does not answer as an etcd."""
    first = endpoints.split(",", maxsplit=1)[0].strip()
    try:
        return await asyncio.to_thread(_ask, first)
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise StackError(f"no etcd answers at {first}, which --etcd names: {reason}") from error


def _ask(endpoint: str) -> str:
    connection = http.client.HTTPConnection(endpoint, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", "/version")
        return str(json.loads(connection.getresponse().read())["etcdserver"])
    finally:
        connection.close()
