-- Taken by another change; the merge deletes this file.
select 1;
