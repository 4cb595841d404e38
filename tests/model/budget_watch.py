"""Watches the budgets of a database from inside: every version of every row is kept, and no transaction that leaves a
budget and its tasks apart may commit. What is seen here is seen by triggers, so nothing happens in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from tests.support.fix_checkpoint import Checkpoint

# The tasks of a root change their open attempts under the lock of its budget: what a transaction reads of them at its
# end is what stands then.
_WATCH: Final = """
create schema watch;
create table watch.versions (
  number bigint generated always as identity, root_task_id uuid,
  max_tokens bigint, used_tokens bigint, reserved_tokens bigint, beyond_tokens bigint
);

create function watch.note() returns trigger language plpgsql as $$
begin
  insert into watch.versions (root_task_id, max_tokens, used_tokens, reserved_tokens, beyond_tokens)
  values (new.root_task_id, new.max_tokens, new.used_tokens, new.reserved_tokens, new.beyond_tokens);
  return null;
end $$;
create trigger noted after insert or update on ledger.budgets for each row execute function watch.note();

create function watch.compare() returns trigger language plpgsql as $$
declare
  stands record; set_aside bigint; billed bigint;
begin
  select * into stands from ledger.budgets where root_task_id = new.root_task_id;
  select coalesce(sum(model_input + model_output), 0) into set_aside
    from ledger.tasks where root_task_id = new.root_task_id and model_open;
  select coalesce(sum(input_tokens + output_tokens + cache_creation_input_tokens + cache_read_input_tokens), 0)
    into billed from ledger.token_usage where root_task_id = new.root_task_id;
  if (stands.reserved_tokens, stands.used_tokens) is distinct from (set_aside, billed) then
    raise exception 'a budget has %% set aside and %% used, its tasks %% and %%',
      stands.reserved_tokens, stands.used_tokens, set_aside, billed;
  end if;
  return null;
end $$;
create constraint trigger compared after update on ledger.budgets deferrable initially deferred
  for each row execute function watch.compare();
create constraint trigger compared after update of model_open, input_tokens, output_tokens on ledger.tasks
  deferrable initially deferred for each row execute function watch.compare();
"""


class Version(NamedTuple):
    """A budget as it stood once, in tokens."""

    max_tokens: int
    used_tokens: int
    reserved_tokens: int
    beyond_tokens: int

    @property
    def taken(self) -> int:
        return self.used_tokens + self.reserved_tokens


async def watch_budgets(replica: Checkpoint) -> None:
    """From now on."""
    await replica.query(_WATCH)


async def versions(replica: Checkpoint, root_task_id: str) -> list[Version]:
    """All that a root's budget ever was, in order."""
    result = await replica.query(
        "select max_tokens, used_tokens, reserved_tokens, beyond_tokens from watch.versions"
        " where root_task_id = %s order by number",
        root_task_id,
    )
    return [Version(*columns) for columns in result]
