"""The ledger's guards: who may open and commit, and what may follow an end."""

from __future__ import annotations

from tests.fault.mutants.mutation import Edit, Mutation

ADMISSION = "tenure.domain.admission"
BUDGET = "tenure.domain.budget"
COMMITTING = "services.checkpoint.commit.committing"
DRAFT = "services.checkpoint.commit.draft"
LOST_CALLS = "tenure.domain.in_doubt"
UNDOING = "services.checkpoint.submit.undoing"

MUTATIONS = (
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
        triggers=("tasks.valid_tasks", "tasks.tasks_are_held_once"),
    ),
    Mutation(
        "open_same_claim_later",
        "checkpoint",
        "Open refuses a claim that was given back",
        ("I2",),
        (Edit(ADMISSION, "    if fence.epoch <= row.opened.epoch:", "    if fence.epoch < row.opened.epoch:"),),
        triggers=("tasks.tasks_are_held_once",),
    ),
    Mutation(
        "open_raises_the_fence",
        "checkpoint",
        "Open of a held task raises the fence, so that its former owner's writes are refused from then on",
        ("I4",),
        (
            Edit(
                "services.checkpoint.commit.opening",
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
        triggers=("tasks.valid_tasks", "tasks.tasks_are_held_once"),
    ),
    Mutation(
        "line_at_open",
        "checkpoint",
        "Open asks whether the line of the task's source has admitted it",
        ("I47",),
        (Edit("services.checkpoint.commit.opening", " if row.in_line else None", " if False else None"),),
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
        triggers=("tasks.valid_tasks",),
    ),
    Mutation(
        "requeue_of_the_seen_claim",
        "checkpoint",
        "RequeueLost takes a task only from the claim that was seen to be gone",
        ("I6",),
        (Edit("services.checkpoint.queue.requeue", " and row.claim_id == one.claim_id", ""),),
    ),
    Mutation(
        "end_with_open_calls",
        "checkpoint",
        "no task ends while one of its calls has no outcome",
        ("I16",),
        (
            Edit(
                COMMITTING,
                " or refuse_early_end(move.to_state, calls)",
                "",
            ),
        ),
        triggers=("tasks.valid_tasks",),
    ),
    Mutation(
        "end_stops_the_model",
        "checkpoint",
        "a task that is to end gets no tokens for another model call",
        ("I23",),
        (
            Edit(
                COMMITTING,
                "    if ending is not None:\n        decided =",
                "    if False:\n        decided =",
            ),
        ),
    ),
    Mutation(
        "cancel_wins",
        "checkpoint",
        "a cancel that was acknowledged wins over the end that its owner commits afterwards",
        ("I23",),
        (
            Edit(
                COMMITTING,
                "    if ending is not None and move.to_state",
                "    if False and move.to_state",
            ),
        ),
    ),
    Mutation(
        "reserve_sees_siblings",
        "checkpoint",
        "what others of the tree have set aside is not set aside again",
        ("I17",),
        (
            Edit(
                BUDGET,
                "self.max_tokens - self.used_tokens - self.reserved_tokens if",
                "self.max_tokens - self.used_tokens if",
            ),
        ),
        triggers=("budgets.valid_budgets",),
    ),
    Mutation(
        "reserve_sees_own_cap",
        "checkpoint",
        "a task sets nothing aside beyond the cap that it has by itself",
        ("I17",),
        (Edit(COMMITTING, "(root, row.own_budget) if row.has_own_caps else (root,)", "(root,)"),),
    ),
    Mutation(
        "settle_gives_back",
        "checkpoint",
        "what was set aside for a call is free again once it is settled",
        ("I17",),
        (Edit(DRAFT, "        self.budget.give_back(row.model_reserved, row.model_nano_usd)\n", ""),),
    ),
    Mutation(
        "settle_counts_use",
        "checkpoint",
        "what a call used is counted against the budget of its tree",
        ("I17",),
        (Edit(DRAFT, "self.budget.use(usage.total, nano_usd", "self.budget.use(0, nano_usd"),),
    ),
    Mutation(
        "calls_end_with_their_worker",
        "checkpoint",
        "a call of a worker itself is settled when the worker gives its task back",
        ("I17",),
        (Edit(LOST_CALLS, "return outlives_worker and to_state in", "return to_state in"),),
        triggers=("tasks.valid_tasks",),
    ),
    Mutation(
        "joined_calls_stay_open",
        "checkpoint",
        "a call of a model runner is not settled before the next owner, who joins it",
        ("I32",),
        (Edit(LOST_CALLS, "return outlives_worker and to_state in", "return False and to_state in"),),
    ),
    Mutation(
        "undo_right",
        "checkpoint",
        "One undo at a time has a call",
        ("I45",),
        (
            Edit(
                UNDOING,
                "    await _take_calls(connection, request.task_id, created.task.task_id, effects, planned.ended)\n",
                "",
            ),
        ),
    ),
)
