-- The workers that died with the task since its newest step, each once. Says something only while `deaths` is above 0: a
-- step sets that back, and does not widen its statement for this.
alter table tasks add column dead_owners text[] not null default '{}';
