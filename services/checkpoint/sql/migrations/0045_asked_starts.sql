-- The start time that the client asked for. A rate quota may delay the task beyond it, and when the quota is removed the
-- task must still not start before it. Rows from before have none.

set lock_timeout = '5s';

alter table tasks add column asked_start_at timestamptz;
