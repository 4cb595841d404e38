-- Interrupting messages that go on to the sub-agents of the task that got them. The transaction that records the message
-- inserts the row; the one that gives the message to a page of the sub-agents deletes it. `after_task_id`: of the last page.
create table passed_messages (
  position       bigint generated always as identity primary key,
  parent_task_id uuid   not null,
  sequence       bigint not null,                             -- of the message in the ledger of the parent
  after_task_id  uuid   not null default '00000000-0000-0000-0000-000000000000'
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);
