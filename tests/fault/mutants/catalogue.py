"""The guards, each with the edit that takes it away, and the invariant by which the checker must notice that.

`python -m tests.fault.mutants --list` prints them as a table. tests/fault/test_mutations.py has a scenario for each.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.fault.mutants.loading import Edit

ADMISSION = "tenure.domain.admission"
ACCEPT_RULES = "services.tools.accept_rules"


@dataclass(frozen=True, slots=True)
class Mutation:
    """`guard`: what is missing. `invariants`: any of these must be reported, as tenure.audit numbers them."""

    name: str
    service: str
    guard: str
    invariants: tuple[str, ...]
    edits: tuple[Edit, ...]


_ALL = (
    Mutation(
        "ledger_fence",
        "checkpoint",
        "Commit compares the claim with the ledger's fence",
        ("I4",),
        (
            Edit(
                ADMISSION,
                "    if fence != row.opened:\n        return stale(fence, row.opened)\n    is_last",
                "    is_last",
            ),
        ),
    ),
    Mutation(
        "ledger_claim_id",
        "checkpoint",
        "Commit tells two claims of the same epoch apart",
        ("I5",),
        (
            Edit(
                ADMISSION,
                "    if fence != row.opened:\n        return stale",
                "    if fence.epoch != row.opened.epoch:\n        return stale",
            ),
        ),
    ),
    Mutation(
        "open_lower_epoch",
        "checkpoint",
        "Open refuses a claim that is older than the newest opened one",
        ("I3",),
        (
            Edit(ADMISSION, "    if fence != row.granted:", "    if False:"),
            Edit(ADMISSION, "    if fence.epoch <= row.opened.epoch:", "    if False:"),
        ),
    ),
    Mutation(
        "open_same_claim_later",
        "checkpoint",
        "Open refuses a claim that was given back",
        ("I2",),
        (Edit(ADMISSION, "    if fence.epoch <= row.opened.epoch:", "    if fence.epoch < row.opened.epoch:"),),
    ),
    Mutation(
        "open_raises_the_fence",
        "checkpoint",
        "Open of a held task raises the fence, so that its former owner's writes are refused from then on",
        ("I4",),
        (
            Edit(
                "services.checkpoint.opening",
                "    if verdict is OpenVerdict.TAKEOVER:\n",
                "    if verdict is OpenVerdict.TAKEOVER:\n        return\n",
            ),
        ),
    ),
    Mutation(
        "registered_grants",
        "checkpoint",
        "Open asks whether the claim was registered in the ledger",
        ("I5",),
        (Edit(ADMISSION, "    if fence != row.granted:", "    if False:"),),
    ),
    Mutation(
        "commit_repeat",
        "checkpoint",
        "a commit that was made already is answered and not made again",
        ("I11",),
        (Edit(ADMISSION, "        return CommitVerdict.REPEAT  #", "        return CommitVerdict.APPLY  #"),),
    ),
    Mutation(
        "commit_number",
        "checkpoint",
        "a commit's number is the next one of its claim",
        ("I11",),
        (Edit(ADMISSION, "    if commit_number != row.commit_number + 1:", "    if False:"),),
    ),
    Mutation(
        "requeue_of_the_seen_claim",
        "checkpoint",
        "RequeueLost takes a task only from the claim that was seen to be gone",
        ("I6",),
        (Edit("services.checkpoint.requeue", " or row.claim_id != one.claim_id", ""),),
    ),
    Mutation(
        "end_with_open_calls",
        "checkpoint",
        "no task ends while one of its calls has no outcome",
        ("I16",),
        (
            Edit(
                "services.checkpoint.committing",
                "        return refuse_early_end(commit.move.to_state, calls)",
                "        return None",
            ),
        ),
    ),
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
        "tool_fence_closes",
        "tools",
        "Fence(close) raises and closes the fence before it settles the calls",
        ("I23",),
        (
            Edit(
                "services.tools.closing",
                "        if fence != current:\n            await raise_fences",
                "        if fence != current and not close:\n            await raise_fences",
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
                "    return Answer(known_outcome(row))\n",
                "    return Run(row.call_attempt + 1)\n",
            ),
            Edit(
                "services.tools",
                "   set state = w.state, call_attempt = w.call_attempt, epoch = w.epoch, claim_id = w.claim_id,\n",
                "   set state = w.state, call_attempt = w.call_attempt, epoch = w.epoch, claim_id = w.claim_id, "
                "outcome = null,\n",
                sql=True,
            ),
        ),
    ),
    Mutation(
        "call_joined",
        "tools",
        "a call that is running is joined and not begun a second time",
        ("I12",),
        (
            Edit(
                ACCEPT_RULES,
                "    if here.running_attempt == row.call_attempt:\n        return Join(row.call_attempt)\n    # A call",
                "    return Run(row.call_attempt + 1)\n    # A call",
            ),
        ),
    ),
    Mutation(
        "call_in_doubt",
        "tools",
        "an UNSAFE call whose runner died is in doubt and not begun again",
        ("I12",),
        (Edit(ACCEPT_RULES, "    if row.effect_class.may_run_again:\n", "    if True:\n"),),
    ),
    Mutation(
        "call_started",
        "tools",
        "an effect begins only when its call could be marked STARTED under the fence",
        ("I14",),
        (Edit("services.tools.runner", "        if not marked:\n            raise Displaced\n", ""),),
    ),
    Mutation(
        "intent_before_effect",
        "worker",
        "tools are called only once the intents are committed",
        ("I13",),
        (
            Edit(
                "services.worker.model_step",
                '        await failpoint("worker.after_model")\n',
                "        for _, intent in _answer_facts(step, attempt, answer)[1:]:\n"
                "            await self._parts.tools.execute(self._holding.token, intent, lambda: None, 30.0)\n"
                '        await failpoint("worker.after_model")\n',
            ),
        ),
    ),
    Mutation(
        "session_end_is_conditional",
        "coordinator",
        "a session is ended only by the replica it is still attached to",
        (),
        (
            Edit(
                "services.coordinator.lease_store.session_keys",
                "self._etcd.delete(key, only_if=(modified_at(key, held.mod_revision),))",
                "self._etcd.delete(key)",
            ),
        ),
    ),
)

MUTATIONS = {mutation.name: mutation for mutation in _ALL}


def table() -> str:
    """One line each: the mutation, the service, what notices it, and the guard that is missing."""
    rows = [("mutation", "service", "noticed by", "the guard that is taken away")]
    rows += [(each.name, each.service, " ".join(each.invariants) or "the test", each.guard) for each in _ALL]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) + "\n"
        for row in rows
    )
