"""The rules of tenants on tool calls: kept in the database, known to each replica, tried on recorded calls.

book.py        the rules as this replica knows them, read anew several times a second
evaluating.py  what rules say about one call: evaluates their expressions
changes.py     SetToolRule, DeleteToolRule
trying.py      TryToolRule: a rule on recorded calls, without effect

tenure/domain/tool_rules.py decides; ../calls/bounds.py applies the rules to a call that is accepted.
"""
