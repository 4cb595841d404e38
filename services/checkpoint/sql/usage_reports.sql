-- Usage reports of lost model calls, from the workers that made them. All run under the locks of the task and its
-- budget.

-- name: find_attempts
-- The attempts of one step as they were reserved, newest first: under which claim, and how much.
select epoch, claim_id, body from entries
 where task_id = %(task_id)b::text::uuid and kind = 4 and step = %(step)b and epoch > 0
 order by sequence desc;

-- name: find_bill
-- The bill of the attempt, and whether it was reported.
select u.lost, r.task_id is not null, u.nano_usd,
       u.input_tokens, u.output_tokens, u.cache_creation_input_tokens, u.cache_read_input_tokens
  from token_usage u
  left join usage_reports r using (task_id, step, attempt_number)
 where u.task_id = %(task_id)b::text::uuid and u.step = %(step)b and u.attempt_number = %(attempt_number)b;

-- name: settled_calls
-- Whether each of these attempts has a bill, in the caller's order.
select u.task_id is not null
  from unnest(%(task_ids)b::uuid[], %(steps)b::int[], %(attempt_numbers)b::int[])
       with ordinality as a(task_id, step, attempt_number, place)
  left join token_usage u using (task_id, step, attempt_number)
 order by a.place;

-- name: keep_report
-- The report, and what the attempt was billed before.
insert into usage_reports (task_id, step, attempt_number, holder, reported_at, provider_request_id,
                           input_tokens, output_tokens, cache_creation_input_tokens, cache_read_input_tokens, nano_usd,
                           estimated_input_tokens, estimated_output_tokens, estimated_cache_creation_input_tokens,
                           estimated_cache_read_input_tokens, estimated_nano_usd)
select u.task_id, u.step, u.attempt_number, %(holder)b, %(locked_at)b::timestamptz, %(provider_request_id)b,
       %(input_tokens)b, %(output_tokens)b, %(cache_creation_input_tokens)b, %(cache_read_input_tokens)b, %(nano_usd)b,
       u.input_tokens, u.output_tokens, u.cache_creation_input_tokens, u.cache_read_input_tokens, u.nano_usd
  from token_usage u
 where u.task_id = %(task_id)b::text::uuid and u.step = %(step)b and u.attempt_number = %(attempt_number)b;

-- name: correct
-- Corrects the bill, and the sums of the task and of its root's budget. The triggers of the first two look for the
-- report. Tokens that the estimate freed may be reserved for another call by now, so an increase counts as beyond the
-- reservation.
with corrected as (
  update token_usage u
     set input_tokens = r.input_tokens, output_tokens = r.output_tokens,
         cache_creation_input_tokens = r.cache_creation_input_tokens,
         cache_read_input_tokens = r.cache_read_input_tokens, nano_usd = r.nano_usd,
         provider_request_id = r.provider_request_id
    from usage_reports r
   where u.task_id = %(task_id)b::text::uuid and u.step = %(step)b and u.attempt_number = %(attempt_number)b
     and (r.task_id, r.step, r.attempt_number) = (u.task_id, u.step, u.attempt_number)
  returning u.task_id, u.root_task_id,
            r.input_tokens - r.estimated_input_tokens as input_tokens,
            r.output_tokens - r.estimated_output_tokens as output_tokens,
            r.cache_creation_input_tokens - r.estimated_cache_creation_input_tokens as cache_creation_input_tokens,
            r.cache_read_input_tokens - r.estimated_cache_read_input_tokens as cache_read_input_tokens,
            r.nano_usd - r.estimated_nano_usd as nano_usd
), counted as (
  update tasks t
     set input_tokens = t.input_tokens + c.input_tokens, output_tokens = t.output_tokens + c.output_tokens,
         cache_creation_input_tokens = t.cache_creation_input_tokens + c.cache_creation_input_tokens,
         cache_read_input_tokens = t.cache_read_input_tokens + c.cache_read_input_tokens,
         used_nano_usd = t.used_nano_usd + c.nano_usd
    from corrected c
   where t.task_id = c.task_id
)
update budgets b
   set used_tokens = b.used_tokens + c.input_tokens + c.output_tokens + c.cache_creation_input_tokens
                     + c.cache_read_input_tokens,
       used_nano_usd = b.used_nano_usd + c.nano_usd,
       beyond_tokens = b.beyond_tokens + greatest(0, c.input_tokens + c.output_tokens + c.cache_creation_input_tokens
                                                     + c.cache_read_input_tokens),
       beyond_nano_usd = b.beyond_nano_usd + greatest(0, c.nano_usd)
  from corrected c
 where b.root_task_id = c.root_task_id;
