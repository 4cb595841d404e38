-- Placeholder of this branch only: not committed.
select 1;
