-- name: see_doubt_waits
-- Tasks that wait for the resolution of calls in doubt, disjoint among coordinators. The longer a task waits, the more
-- rarely it is read: at most `most_seconds` after the last read. A wait that began after the last read is due at once.
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

-- name: list_doubts
-- Tasks of a tenant that wait for the resolution of calls in doubt, from the task of the last call on, inclusive: the
-- last page may have ended before all of its calls.
select t.task_id::text, t.waiting_since::text, t.calls_in_doubt, t.open_calls
  from tasks t
 where t.tenant = %(tenant)b and t.state = 'WAITING_USER' and t.reason = 'TOOL_IN_DOUBT'
   and (t.waiting_since, t.task_id) >= (%(place)b::text::timestamptz, %(place_task_id)b::text::uuid)
 order by t.waiting_since, t.task_id -- not the texts above: the index has time and UUID
 limit %(limit)b;
