-- The tools of MCP servers as they were first seen or as an operator accepted them: a later description is another tool.
create table pinned_sources (
    source text primary key,
    first_seen_at timestamptz not null default clock_timestamp()
);

create table tool_pins (
    source text not null references pinned_sources,
    tool text not null,
    sha256 text not null,
    definition text not null, -- for the difference that operators see
    accepted_by text not null default '', -- empty: at first contact
    accepted_at timestamptz not null default clock_timestamp(),
    primary key (source, tool)
);
