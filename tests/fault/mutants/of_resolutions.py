"""The guards around people's words on calls in doubt: when they are taken, and what they come to."""

from __future__ import annotations

from tests.fault.mutants.mutation import Edit, Mutation

IN_DOUBT = "tenure.domain.in_doubt"

MUTATIONS = (
    Mutation(
        "word_is_another_attempt",
        "tools",
        "what a word decides is the call's next attempt",
        ("I40",),
        (
            Edit(
                IN_DOUBT,
                "detail=HAPPENED, call_attempt=doubted_attempt + 1",
                "detail=HAPPENED, call_attempt=doubted_attempt",
            ),
            Edit(
                IN_DOUBT,
                "detail=ABANDONED, call_attempt=doubted_attempt + 1",
                "detail=ABANDONED, call_attempt=doubted_attempt",
            ),
            Edit(IN_DOUBT, "RunAgain(doubted_attempt + 1) if", "RunAgain(doubted_attempt) if"),
        ),
    ),
    Mutation(
        "word_is_about_one_attempt",
        "tools",
        "a word on one attempt decides nothing about another",
        ("I12",),
        (Edit(IN_DOUBT, "    if resolution.call_attempt != doubted_attempt:\n        return None\n", ""),),
    ),
    Mutation(
        "word_needs_proof",
        "gateway",
        "it did not happen is believed only once the runner is gone, by proof or by somebody's word",
        ("I40",),
        (Edit("services.gateway.in_doubt", "        if not call.runner_gone and waits:\n", "        if False:\n"),),
    ),
    Mutation(
        "outcome_is_the_attempts",
        "tools",
        "what an older attempt came to is not recorded over a newer decision",
        ("I12",),
        (
            Edit(
                "services.tools",
                " and c.call_attempt = w.call_attempt and c.state in ('STARTED'",
                " and c.state in ('STARTED'",
                sql=True,
            ),
        ),
    ),
)
