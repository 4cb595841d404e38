-- Nothing but this in one transaction: while it has the table, no runner renews, and one that cannot for long stops all it runs.
--
-- What a process is to those that share its machine: so that one of them can find that it is dead, which is more than that
-- it does not renew. Empty and 0 where that is not known: then nothing is proven but by the process itself.
alter table runners add column machine_id text not null default '';
alter table runners add column boot_id text not null default '';
alter table runners add column namespaces text not null default '';
alter table runners add column pid int not null default 0;
alter table runners add column start_ticks bigint not null default 0;
-- Proven: nothing that was begun under this life goes on, and nothing will begin. Never set because a time ran out.
alter table runners add column ended_at timestamptz;

-- 0: it said good-bye, or is followed by its process's next life, and counts as dead at once. That is no proof.
alter table runners drop constraint runners_ttl_seconds_check;
alter table runners add constraint runners_ttl_seconds_check check (ttl_seconds >= 0);
