"""The tools' guards: their fence, and the records of calls."""

from __future__ import annotations

from tests.fault.mutants.mutation import Edit, Mutation

ACCEPT_RULES = "services.tools.calls.accept_rules"
ACCEPT_RULED = "services.tools.calls.accept_ruled"

MUTATIONS = (
    Mutation(
        "tool_fence",
        "tools",
        "Execute refuses a stale claim, and a start asks for the fence again",
        ("I14",),
        (
            Edit(
                ACCEPT_RULES,
                "    if presented != row.current or row.closed:\n        return stale(presented, row.current)\n",
                "",
            ),
            Edit("services.tools", " and c.epoch = f.epoch and c.claim_id = f.claim_id\n", "\n", sql=True),
        ),
    ),
    Mutation(
        "tool_fence_of_new_calls",
        "tools",
        "the statement that accepts and starts new calls leaves out those of a stale claim",
        ("I14",),
        (Edit("services.tools", "from fence where current_epoch = epoch and is_open\n", "from fence\n", sql=True),),
    ),
    Mutation(
        "tool_fence_closes",
        "tools",
        "Fence(close) raises and closes the fence before it settles the calls",
        ("I23",),
        (
            Edit(
                "services.tools.calls.closing",
                "        if fence != current:\n            await raise_fences",
                "        if fence != current and not close:\n            await raise_fences",
            ),
        ),
    ),
    Mutation(
        "call_off",
        "tools",
        "closing the fence calls off what was accepted and not started",
        ("I23",),
        (
            Edit(
                "services.tools.calls.closing",
                "        if not close:\n            return 0\n        called_off",
                "        if True:\n            return 0\n        called_off",
            ),
        ),
    ),
    Mutation(
        "call_record",
        "tools",
        "a call that has an outcome is answered from its record",
        ("I12",),
        (
            Edit(
                ACCEPT_RULES,
                "    return AnswerFromRecord(known_outcome(row))\n",
                "    return RunCall(row.call_attempt + 1)\n",
            ),
        ),
        triggers=("calls.receipts_stay",),
    ),
    Mutation(
        "call_joined",
        "tools",
        "a call that is running is joined and not begun a second time",
        ("I12",),
        (
            Edit(
                ACCEPT_RULES,
                "    if here.running_attempt == row.call_attempt:\n        return JoinCall(row.call_attempt)\n    "
                "# A call",
                "    return RunCall(row.call_attempt + 1)\n    # A call",
            ),
        ),
    ),
    Mutation(
        "call_in_doubt",
        "tools",
        "an UNSAFE call whose runner died is in doubt and not begun again",
        ("I12",),
        (Edit(ACCEPT_RULES, "    if row.effect_class.may_run_again and may_be_repeated:\n", "    if True:\n"),),
    ),
    Mutation(
        "repeated_with_its_key",
        "tools",
        "a call whose end is unknown is sent again with its own idempotency key",
        ("I13", "I19"),
        (
            Edit(
                "services.tools.calls.effects",
                "idempotency_key=run.idempotency_key,",
                "idempotency_key=f'{run.key.task_id}/99.0' if run.sent_before else run.idempotency_key,",
            ),
        ),
    ),
    Mutation(
        "own_call_of_lost_worker",
        "tools",
        "a call that its caller runs belongs to the claim under which it was started",
        ("I12",),
        (
            Edit(
                ACCEPT_RULES,
                "_decide_own_run(row, request, here) if request.fence == row.fence else",
                "_decide_own_run(row, request, here) if True else",
            ),
        ),
    ),
    Mutation(
        "call_started",
        "tools",
        "an effect begins only when its call could be marked STARTED under the fence",
        ("I12",),
        (Edit("services.tools.calls.running", "        if not marked:\n", "        if False:\n"),),
    ),
    Mutation(
        "effect_key",
        "tools",
        "an effect key belongs to the call that had it first, and not to the newest one",
        ("I44",),
        (
            Edit(
                "services.tools",
                "on conflict (digest) do update set round = excluded.round where false;\n\n-- name: lock_effects",
                "on conflict (digest) do update set task_id = excluded.task_id, call_id = excluded.call_id;\n\n"
                "-- name: lock_effects",
                sql=True,
            ),
        ),
    ),
    Mutation(
        "undone_key",
        "tools",
        "only a compensation that succeeded frees the effect key of the undone call",
        ("I44",),
        (
            Edit(
                "services.tools.calls.effect_keys",
                '    return request.undoes if fact_of_outcome(outcome) is EffectFact.HAPPENED else ""\n',
                "    return request.undoes\n",
            ),
        ),
    ),
    Mutation(
        "bound_counted",
        "tools",
        "the transaction that records a call also counts it against the bounds of its rules",
        ("I46",),
        (Edit(ACCEPT_RULED, "            await bounds.write(postgres)\n", ""),),
    ),
    Mutation(
        "bound_locked",
        "tools",
        "a counter is read under its lock, which lasts until the call is recorded",
        ("I46",),
        (
            Edit(
                ACCEPT_RULED,
                "            bounds = await lock_bounds(postgres, judgements, ",
                "            async with self._pool.connection() as other:\n"
                "                bounds = await lock_bounds(other, judgements, ",
            ),
        ),
    ),
    Mutation(
        "stop_covers",
        "tools",
        "a call that a stop covers is neither accepted nor started",
        ("I43",),
        (
            Edit(
                "tenure.domain.stops",
                "        return self._selects(subject) and covers_tool",
                "        return False and covers_tool",
            ),
        ),
    ),
    Mutation(
        "stop_waits",
        "tools",
        "the answer to a stop waits for transactions that have read the stops before",
        ("I43",),
        (
            Edit(
                "services.tools.calls.stops",
                "        if not await earlier_have_ended(self._pool, BARRIER_SECONDS):\n",
                "        if False:\n",
            ),
        ),
    ),
)
