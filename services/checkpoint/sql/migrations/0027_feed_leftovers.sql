-- A ledger that was copied to another cluster begins a new feed. The rows of the old one are those whose position is at most
-- `leftover_position`; nobody reads them, and they go in batches, in the order of the index, of which the last row looked at
-- is kept. 0: there are none. Deleting them all when a service starts took longer than a statement may.
alter table change_feed
  add column leftover_position bigint not null default 0,
  add column leftover_reached_xid xid8 not null default '0',
  add column leftover_reached_position bigint not null default 0;
