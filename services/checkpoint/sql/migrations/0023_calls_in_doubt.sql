-- What a task waits for that is TOOL_IN_DOUBT: "<call_id>:<attempt>" of each call that nobody has given a word on yet. Empty
-- for waits that were begun before this, or by workers that do not say.
alter table tasks add column calls_in_doubt text[] not null default '{}';

alter table tasks
  add constraint only_waiting_tasks_have_calls_in_doubt check (calls_in_doubt = '{}' or state = 'WAITING_USER');
