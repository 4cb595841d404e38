-- The words of tasks' goals and results, for a search by text. Tasks that were created before this table are found by the
-- words of later results only.
--
-- A table of its own: a step, which copies the row of its task, copies no words. The words are lexemes with the tenant in
-- front, so that a search reads no other tenant's part of the index (tenure/domain/search.py).
create table task_texts (
  task_id uuid primary key,
  words   tsvector not null
);
-- New words wait in the index's list and are merged in bulk; a search reads the list too, so it is short.
create index task_texts_words on task_texts using gin (words) with (gin_pending_list_limit = 1024);

-- Whether a task has all of these words.
create function has_words(of_task uuid, wanted tsquery) returns boolean
  language sql stable set search_path = ledger, pg_temp as $$
  select exists (select from task_texts x where x.task_id = of_task and x.words @@ wanted)
$$;
