-- name: see_doubt_waits
-- Tasks that wait for a word on calls in doubt, disjoint among coordinators. One that waits long is seen ever more rarely: up to
-- most_seconds after its last time. A wait that is newer than that is due at once.
with locked as (
  select t.task_id from tasks t
   where t.state = 'WAITING_USER' and t.reason = 'TOOL_IN_DOUBT' and t.ending_state = ''
     and (t.doubt_seen_at is null or t.doubt_seen_at < t.waiting_since
          or t.doubt_seen_at < now() - make_interval(secs => least(
               greatest(%(least_seconds)b, extract(epoch from t.doubt_seen_at - t.waiting_since)::float8 / 2), %(most_seconds)b)))
   order by t.doubt_seen_at nulls first
   limit %(limit)b
   for no key update of t skip locked
)
update tasks t set doubt_seen_at = now()
  from locked where t.task_id = locked.task_id
returning t.task_id::text, t.tenant, t.epoch, t.calls_in_doubt, t.open_calls;
