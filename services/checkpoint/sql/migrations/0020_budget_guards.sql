-- What is used and set aside never passes a cap, whoever writes: not between two statements either, since a row is checked as it
-- is written. What calls came to beyond what was set aside for them is counted by itself: nobody can take that back.
--
-- True of a new row, of a reservation out of what is free, of a settlement (what it counts as used it gives back, or counts as
-- beyond), and of a raised cap: so it is true at every moment.
alter table budgets
  add column beyond_tokens   bigint not null default 0 check (beyond_tokens >= 0),
  add column beyond_nano_usd bigint not null default 0 check (beyond_nano_usd >= 0);

update budgets
   set beyond_tokens = greatest(0, used_tokens + reserved_tokens - max_tokens),
       beyond_nano_usd = case when max_nano_usd = 0 then 0
                              else greatest(0, used_nano_usd + reserved_nano_usd - max_nano_usd) end;

alter table budgets
  add constraint tokens_within_the_cap check (used_tokens + reserved_tokens <= max_tokens + beyond_tokens),
  add constraint money_within_the_cap check (
    max_nano_usd = 0 or used_nano_usd + reserved_nano_usd <= max_nano_usd + beyond_nano_usd);

create function refuse_smaller_cap() returns trigger language plpgsql as $$
begin
  raise exception 'caps, and what was used beyond them, only grow' using errcode = 'check_violation';
end $$;
create trigger budgets_only_grow before update on budgets for each row
  when (new.max_tokens < old.max_tokens or new.max_nano_usd < old.max_nano_usd
        or new.beyond_tokens < old.beyond_tokens or new.beyond_nano_usd < old.beyond_nano_usd)
  execute function refuse_smaller_cap();
