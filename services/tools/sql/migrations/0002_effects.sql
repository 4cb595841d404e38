-- A placeholder for the migration of effect keys, so that the numbers have no gap on this branch: the merge keeps theirs.
select;
