"""The rules of all tenants, as this replica knows them.

A tenant with rules: each transaction that accepts its calls compares the version under a lock, so a change of the rules
holds for each call that is accepted after it. A tenant without rules: its calls are accepted without a look at the
database, as long as the list of tenants that have rules is younger than FRESH_SECONDS.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Final

from services.tools.statements import RULES
from services.tools.sweeps import delete_all
from tenure.domain.errors import TenureError
from tenure.domain.tool_rules import ToolRule
from tenure.runtime.process import rest
from tenure.runtime.store.postgres import Connection, Pool, pool_connection
from tenure.v1 import tool_pb2
from tenure.wire.common import timestamp
from tenure.wire.tool_rules import rule_to_domain

_log: Final = logging.getLogger(__name__)
FRESH_SECONDS: Final = 1.0
"""How long after its commit the first rule of a tenant holds at every replica, at the latest."""
POLL_SECONDS: Final = 0.4
_SWEEP_EVERY: Final = 150


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules of a tenant at one version."""

    version: int
    rules: tuple[ToolRule, ...]

    def that_fit(self, tool: str, agent: str) -> list[ToolRule]:
        """Returns the rules about calls of a tool for an agent."""
        return [rule for rule in self.rules if rule.fits(tool, agent)]


class RuleBook:
    """Which tenants have rules, and the rules. `poll` is a duty.

    `tenants`: those that have rules. `fresh_until`: until when that is true, by the monotonic clock; 0: unknown.
    """

    def __init__(self, pool: Pool, poll_seconds: float = POLL_SECONDS) -> None:
        self._pool, self._poll_seconds = pool, poll_seconds
        self.tenants: frozenset[str] = frozenset()
        self.fresh_until = 0.0
        self._sets: dict[str, RuleSet] = {}

    async def poll(self) -> None:
        """Reads which tenants have rules, and deletes old counters, as a duty."""
        reads = 0
        while True:
            try:
                await self.refresh()
                if reads % _SWEEP_EVERY == 0:
                    await self.forget_counters()
            except TenureError as error:  # accepting transactions read it themselves, or fail as this did
                _log.warning("the rules could not be read; they are read again", extra={"error": str(error)})
            reads += 1
            await rest(self._poll_seconds)

    async def refresh(self) -> None:
        """Reads which tenants have rules."""
        read_at = monotonic()
        async with pool_connection(self._pool) as postgres:
            versions: dict[str, int] = dict(await (await postgres.execute(RULES.versions)).fetchall())
        self._sets = {name: one for name, one in self._sets.items() if versions.get(name) == one.version}
        self.tenants, self.fresh_until = frozenset(versions), read_at + FRESH_SECONDS

    async def forget_counters(self) -> None:
        """Deletes the counters whose time was over a week ago."""
        await delete_all(self._pool, RULES.forget_counters)

    async def sets_of(self, tenants: Iterable[str]) -> Mapping[str, RuleSet]:
        """Returns the rules of tenants, as this replica read them last, or reads them."""
        wanted = set(tenants)
        known = {tenant: self._sets[tenant] for tenant in wanted & self._sets.keys()}
        if missing := wanted - known.keys():
            read = await self._read(missing)
            self._sets = {**self._sets, **read}  # refresh may have replaced it meanwhile
            known |= read
        return known

    async def _read(self, tenants: Collection[str]) -> dict[str, RuleSet]:
        async with pool_connection(self._pool) as postgres:
            rows = await (await postgres.execute(RULES.rules_of, {"tenants": sorted(tenants)})).fetchall()
        read = dict.fromkeys(tenants, RuleSet(0, ()))
        for tenant, version, packed, *_ in rows:
            rules = () if packed is None else (rule_to_domain(tool_pb2.ToolRule.FromString(packed)),)
            read[tenant] = RuleSet(version, (*read[tenant].rules, *rules))
        return read

    def forget(self, tenants: Iterable[str]) -> None:
        """Forgets the rules of tenants whose version has changed."""
        for tenant in tenants:
            self._sets.pop(tenant, None)


async def changed_since(postgres: Connection, sets: Mapping[str, RuleSet]) -> list[str]:
    """Locks the versions of tenants until the transaction ends. Returns the tenants whose rules have changed."""
    cursor = await postgres.execute(RULES.hold_versions, {"tenants": sorted(sets)})
    held = dict(await cursor.fetchall())
    return [tenant for tenant, one in sets.items() if held.get(tenant, 0) != one.version]


async def listed_rules(pool: Pool, tenant: str) -> list[tool_pb2.ToolRule]:
    """Returns the tenant's rules by name, as people see them."""
    async with pool_connection(pool) as postgres:
        rows = await (await postgres.execute(RULES.rules_of, {"tenants": [tenant]})).fetchall()
    rules = []
    for _, _, packed, version, actor, updated_at in rows:
        if packed is not None:
            rule = tool_pb2.ToolRule.FromString(packed)
            rule.version, rule.changed_by = version, actor
            rule.update_time.CopyFrom(timestamp(updated_at))
            rules.append(rule)
    return rules
