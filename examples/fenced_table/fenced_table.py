"""A backend with its own table that lets only the holder of a Tenure lease write to it.

fenced_table.py HOLDER --gateway 127.0.0.1:8470 --dsn postgresql://…      then lines like `bolts 40` on standard input

The lease decides who may try. The fence, `FencedTable.write`, decides whose writes count: it compares the epoch in the
token with the highest epoch that ever wrote, under the row lock that the write holds too. So it refuses a holder that
was paused, wakes after its lease went to another holder, and only then sends its write. The holder's own checks cannot
prevent that: it may be paused after any of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

import psycopg

from tenure.client import Client
from tenure.client.leases import HeldLease
from tenure.client.verification import TokenVerifier
from tenure.domain.errors import StaleEpoch
from tenure.v1.token_pb2 import FencingToken

RESOURCE = "tables/stock"

# Raises the fence, or finds its own epoch there, or returns no row. In each case the row stays locked until the
# transaction ends, so no other epoch can come between the comparison and the write.
RAISE_FENCE = """
insert into fences as f (resource, epoch, claim_id) values (%(resource)s, %(epoch)s, %(claim_id)s)
on conflict (resource) do update set epoch = excluded.epoch, claim_id = excluded.claim_id
 where f.epoch < excluded.epoch or (f.epoch = excluded.epoch and f.claim_id = excluded.claim_id)
returning epoch
"""
WRITE = """
insert into stock (item, amount) values (%(item)s, %(amount)s)
on conflict (item) do update set amount = excluded.amount
"""


class FencedTable:
    """The table with its fence. It could be a separate service: it trusts only the token."""

    def __init__(self, dsn: str, verifier: TokenVerifier) -> None:
        self._dsn, self._verifier = dsn, verifier

    async def write(self, token: FencingToken, item: str, amount: int) -> None:
        """Writes a row durably. Raises StaleEpoch after a newer holder's write, and Unauthenticated for a forgery."""
        claims = await self._verifier.verify(token, resource=f"leases/{RESOURCE}")
        fence = {"resource": RESOURCE, "epoch": claims.epoch, "claim_id": claims.claim_id}
        async with await psycopg.AsyncConnection.connect(self._dsn) as postgres, postgres.transaction():
            if await (await postgres.execute(RAISE_FENCE, fence)).fetchone() is None:
                raise StaleEpoch(presented=claims.epoch)
            await postgres.execute(WRITE, {"item": item, "amount": amount})


async def serve(holder: str, gateway: str, dsn: str, ttl_seconds: float, wait_seconds: float) -> None:
    """Holds the lease and writes the lines of standard input; prints one line of JSON per write."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as postgres:
        await postgres.execute(Path(__file__).with_name("schema.sql").read_bytes())
    async with Client(gateway) as tenure:
        table = FencedTable(dsn, TokenVerifier(tenure.leases))
        # cancel_on_loss is off to show the worst case: a holder that does not notice the loss of its lease.
        holding = HeldLease(
            tenure.leases,
            RESOURCE,
            holder=holder,
            ttl_seconds=ttl_seconds,
            wait_seconds=wait_seconds,
            cancel_on_loss=False,
        )
        async with holding as lease:
            tell(holder=holder, holds=RESOURCE, epoch=lease.epoch, after=lease.info.reason)
            while line := await asyncio.to_thread(sys.stdin.readline):
                item, amount = line.split()
                try:
                    await table.write(lease.token, item, int(amount))
                    tell(holder=holder, wrote=item, amount=int(amount), epoch=lease.epoch)
                except StaleEpoch:
                    tell(holder=holder, refused=item, epoch=lease.epoch)


def tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("holder")
    parser.add_argument("--gateway", default="127.0.0.1:8470")
    parser.add_argument("--dsn", required=True, help="a Postgres database in which two tables may be created")
    parser.add_argument("--ttl", type=float, default=5.0)
    parser.add_argument("--wait", type=float, default=60.0, help="how long to wait for another holder")
    options = parser.parse_args()
    asyncio.run(serve(options.holder, options.gateway, options.dsn, options.ttl, options.wait))


if __name__ == "__main__":
    main()
