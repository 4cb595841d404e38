-- The data, and the highest epoch that ever wrote to it. `fences` has one row for each leased resource.
create table if not exists stock (
  item   text primary key,
  amount int  not null
);

create table if not exists fences (
  resource text   primary key,
  epoch    bigint not null,
  claim_id text   not null
);
