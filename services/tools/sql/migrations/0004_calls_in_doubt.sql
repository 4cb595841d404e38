-- Since when a call is in doubt, and what its tool itself says of it ('': its runner was lost). Calls that were in doubt before
-- this have no time.
alter table calls add column doubted_at timestamptz;
alter table calls add column doubt_note text not null default '';

-- What people look through. Few calls are ever in doubt.
create index calls_in_doubt on calls (doubted_at, task_id, call_id) where state = 'IN_DOUBT';
