"""What is left out of the conversation, or stands for a part of it."""

from __future__ import annotations

from tenure.domain.entries import ClearedResults, Compaction, Summary
from tenure.v1 import ledger_pb2


def compaction_to_domain(message: ledger_pb2.Compaction) -> Compaction:
    """ValueError for a way that this version does not know."""
    match message.WhichOneof("how"):
        case "cleared_results":
            cleared = message.cleared_results
            return Compaction(
                ClearedResults(
                    cleared.through_step, cleared.results, cleared.input_tokens_before, cleared.input_tokens_after
                )
            )
        case "summary":
            return Compaction(Summary(message.summary.through_step, message.summary.text))
        case _:
            raise ValueError("a compaction in a way that this version does not know")


def compaction_to_wire(fact: Compaction) -> ledger_pb2.Compaction:
    how = fact.how
    if isinstance(how, Summary):
        return ledger_pb2.Compaction(
            summary=ledger_pb2.Compaction.Summary(through_step=how.through_step, text=how.text)
        )
    return ledger_pb2.Compaction(
        cleared_results=ledger_pb2.Compaction.ClearedResults(
            through_step=how.through_step,
            results=how.results,
            input_tokens_before=how.input_tokens_before,
            input_tokens_after=how.input_tokens_after,
        )
    )
