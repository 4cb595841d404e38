-- In a transaction of its own: it reads the whole table and locks no more of it than the rows that it changes.
update calls set doubted_at = coalesce(started_at, accepted_at) where state = 'IN_DOUBT' and doubted_at is null;
