-- outside a transaction
-- The calls of a span of time, for a rule that is tried on recorded calls. Nearly free: calls are inserted by their time.
drop index concurrently if exists calls_by_time;
create index concurrently calls_by_time on calls using brin (accepted_at);
