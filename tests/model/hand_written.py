"""SQL that must be refused from every writer. %s is the task."""

from __future__ import annotations

from typing import Any


def _several(text: Any) -> Any:
    return [one.strip() for one in text.split(";") if one.strip()]


OF_ANY_TASK = _several("""
    epoch = epoch - 1; epoch = epoch + 1; claim_id = 'x'; epoch = granted + 1, claim_id = 'x';
    granted = granted - 1; granted_claim = 'x';
    sequence = sequence - 1; step = step - 1; claim_count = claim_count - 1; input_tokens = input_tokens - 1;
    attempt = attempt + 1; attempt = 0; deaths = -1; output_tokens = -1;
    holds = not holds; owner = case when holds then null else 'x' end;
    ended_at = case when ended_at is null then now() end;
    next_retry_at = case when next_retry_at is null then now() end;
    waiting_since = case when waiting_since is null then now() end; wait_correlation = 'x', wait = '';
    ending_state = 'QUEUED'; ending_state = 'FAILED', ending_at = null;
    tenant = 'x'; request_id = 'x'; task_id = gen_random_uuid(); created_at = now() + interval '1 s';
    state = 'LOST'; priority = 4; on_lease_lost = 'SHRUG'
""")
"""What may be set in no task, in whatever state."""

OF_ENDED_TASKS = _several("""
    result = 'x'; result_json = 'x'; reason = 'x'; message = 'x'; open_calls = '{1.0}';
    ended_at = now() + interval '1 s'
""")

OF_TASKS_THAT_NOBODY_HOLDS = _several("model_open = true")

OF_OTHER_TABLES = _several("""
    update ledger.entries set step = step + 1 where task_id = %s;
    delete from ledger.entries where task_id = %s;
    insert into ledger.entries select task_id, sequence, tenant, 0, '', 1, 0, 3, 'x', now(), '' from ledger.tasks
     where task_id = %s;
    insert into ledger.entries select task_id, sequence + 2, tenant, 0, '', 1, 0, 3, 'x', now(), '' from ledger.tasks
     where task_id = %s;
    insert into ledger.entries_0 select task_id, sequence + 2, tenant, 0, '', 1, 0, 3, 'x', now(), '' from ledger.tasks
     where task_id = %s;
    delete from ledger.entries_0 where task_id = %s;
    insert into ledger.moves select 'SUCCEEDED', state from ledger.tasks where task_id = %s;
    delete from ledger.moves where to_state = (select state from ledger.tasks where task_id = %s);
    update ledger.epochs set generation = generation - 1 where exists (select from ledger.tasks where task_id = %s);
    delete from ledger.epochs where exists (select from ledger.tasks where task_id = %s);
    insert into ledger.tasks (task_id, tenant, request_id, request_hash, root_task_id, queue, priority, loop, labels,
                              max_steps, on_lease_lost, deadline_at, state, ended_at)
    select gen_random_uuid(), tenant, 'x', '', root_task_id, queue, priority, loop, labels, max_steps, on_lease_lost,
           deadline_at, 'SUCCEEDED', now() from ledger.tasks where task_id = %s
""")
