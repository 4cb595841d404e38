"""The configurations to check, and the expected verdict of each.

`HOLDS`: no reachable state breaks a property. `BREAKS`: the search must find a trace that breaks one: a guard was
removed, or the requested state must be reachable. A guard whose removal breaks nothing is listed too, to document that
it is the second of two guards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HOLDS, BREAKS = "holds", "breaks"


@dataclass(frozen=True, slots=True)
class Configuration:
    """One exhaustive search. `flags`: definitions without -D."""

    name: str
    model: str
    flags: str
    expected: str


def _task(name: str, flags: str, expected: str) -> Configuration:
    return Configuration(name, "task.pml", f"NM=4 NAB=0 {flags}", expected)


def _mutation(mutation: str, flags: str = "", expected: str = BREAKS) -> Configuration:
    return _task(mutation.lower(), f"P_ALL {mutation} {flags}", expected)


def _epochs(name: str, flags: str, expected: str) -> Configuration:
    return Configuration(f"epochs_{name}", "epochs.pml", flags, expected)


def _sessions(name: str, flags: str, expected: str) -> Configuration:
    return Configuration(f"sessions_{name}", "sessions.pml", f"P_ALL {flags}", expected)


def _calls(name: str, flags: str, expected: str) -> Configuration:
    return Configuration(f"model_calls_{name}", "model_calls.pml", flags, expected)


def _call_mutation(mutation: str, flags: str = "", expected: str = BREAKS) -> Configuration:
    return _calls(mutation.lower(), f"P_ALL NF=0 {mutation} {flags}", expected)


def _effects(name: str, flags: str, expected: str) -> Configuration:
    return Configuration(f"effects_{name}", "effects.pml", flags, expected)


def _effect_mutation(mutation: str, flags: str = "") -> Configuration:
    return _effects(mutation.lower(), f"P_ALL {mutation} {flags}", BREAKS)


def _stops(name: str, flags: str, expected: str) -> Configuration:
    return Configuration(f"stops_{name}", "stops.pml", flags, expected)


def _stop_mutation(mutation: str, flags: str = "") -> Configuration:
    return _stops(mutation.lower(), f"P_ALL {mutation} NC=1 {flags}", BREAKS)


SMALL: Final[tuple[Configuration, ...]] = (
    _task("unsafe", "P_ALL NX=0", HOLDS),
    _task("runner_dies", "P_ALL NCAN=0", HOLDS),
    _task("reopened", "P_ALL NAB=1 NX=0 NCAN=0", HOLDS),
    _task("given_back", "P_ALL NX=0 NCAN=0 NY=1", HOLDS),
    _task("withdrawn", "P_ALL NW=1 NX=0 NCAN=0", HOLDS),
    _task("two_calls_at_once", "P_ALL NE=2 NC=2 NX=0", HOLDS),
    _task("comes_to_an_end", "P_LIVE PERFECT_FD=1", HOLDS),
    _task("word_given", "P_ALL ND=1 NCAN=0", HOLDS),
    _task("word_mistaken", "P_ALL ND=1 NDW=1 NCAN=0 NX=0", HOLDS),
    _task("elsewhere", "P_ALL ELSEWHERE_MASK=255 NE=2 ND=1", HOLDS),
    _task("reach_third_owner", "P_REACH=1", BREAKS),
    _task("reach_in_doubt", "P_REACH=2 NCAN=0", BREAKS),
    _task("reach_never_ran", "P_REACH=3", BREAKS),
    _task("reach_repeated", "P_REACH=4 UNSAFE_MASK=0", BREAKS),
    _task("reach_withdrawn", "P_REACH=5 NW=1 NX=0", BREAKS),
    _task("reach_parallel", "P_REACH=6 NE=2 NC=2 NCAN=0 NX=0", BREAKS),
    _task("reach_run_again_by_word", "P_REACH=7 ND=1 NCAN=0", BREAKS),
    _mutation("M_WRITE_FENCE"),
    _mutation("M_OPEN_FENCE"),
    _mutation("M_NUMBER"),
    _mutation("M_ADOPT", "NAB=1 NX=0 NCAN=0"),
    _mutation("M_REOPEN", "NAB=1 NX=0 NCAN=0"),
    _mutation("M_TOOL_FENCE"),
    _mutation("M_CLOSE_EQUAL"),
    _mutation("M_RECORD"),
    _mutation("M_STARTED"),
    _mutation("M_START_ANY"),
    _mutation("M_BEGUN", "NCAN=0 UNSAFE_MASK=0"),
    _mutation("M_INTENT"),
    _mutation("M_END_UNFENCED"),
    _mutation("M_DOUBT"),
    _mutation("M_REQUEUE_BLIND", "NX=0 NCAN=0"),
    _mutation("M_NO_PROOF", "ND=1 NX=0 NCAN=0"),
    _mutation("M_LATE_PROOF", "ND=1 NCAN=0"),
    _mutation("M_SAME_ATTEMPT", "ND=1 NDW=1 NX=0 NCAN=0"),
    _mutation("M_ANY_ATTEMPT", "ND=1 NX=2 NCAN=0 NE=2"),
    _mutation("M_PROOF_ELSEWHERE", "ELSEWHERE_MASK=255 NE=2 ND=1 NCAN=0"),
    _mutation("M_STOPPED_ELSEWHERE", "ELSEWHERE_MASK=255 NE=2 NX=0"),
    _epochs("restored", "P_ALL NG=3", HOLDS),
    _epochs("replaced", "P_ALL NG=3 EMPTY=1", HOLDS),
    _epochs("no_owner_needed", "P_LIVE NG=4", HOLDS),
    _epochs("m_register", "P_ALL NG=3 M_REGISTER", BREAKS),
    _epochs("m_compare", "P_ALL NG=3 M_COMPARE", BREAKS),
    _epochs("m_again", "P_ONCE NG=3 M_AGAIN", BREAKS),
    _epochs("m_raise", "P_LIVE NG=4 M_RAISE", BREAKS),
    _sessions("moving", "", HOLDS),
    _sessions("m_mod", "M_MOD", BREAKS),
    _sessions("m_revoke", "M_REVOKE", BREAKS),
    _sessions("m_announce", "M_ANNOUNCE", BREAKS),
    _sessions("m_full", "M_FULL", BREAKS),
    _calls("cancelled", "P_ALL NCAN=1 NF=0", HOLDS),
    _calls("runner_dies", "P_ALL NX=1 NF=0", HOLDS),
    _calls("runner_drains", "P_ALL NDR=1 NF=0", HOLDS),
    _calls("worker_drains", "P_ALL NY=1 NF=0", HOLDS),
    _calls("too_slow", "P_ALL NL=1 NF=0", HOLDS),
    _calls("reopened", "P_ALL NAB=1 NF=0", HOLDS),
    _calls("direct", "P_ALL DIRECT_MASK=4 NF=0", HOLDS),
    _calls("come_to_an_end", "P_LIVE PERFECT_FD=1 NX=1 NDR=1 NT=2 NCAN=1 NL=1 NF=0", HOLDS),
    _calls("reach_joined", "P_REACH=1 NE=3 NF=0", BREAKS),
    _calls("reach_corrected", "P_REACH=2 NCAN=1 NF=0", BREAKS),
    _calls("reach_lost", "P_REACH=3 NX=1 NF=0", BREAKS),
    _calls("reach_taken_over", "P_REACH=4 NDR=1 NF=0", BREAKS),
    _calls("reach_cancelled", "P_REACH=5 NCAN=1 NF=0", BREAKS),
    _calls("reach_later_claim", "P_REACH=6 NCAN=1 NF=0", BREAKS),
    _calls("reach_direct", "P_REACH=7 DIRECT_MASK=4 NF=0", BREAKS),
    # The second of two guards: the attempts of later owners are later, too.
    _call_mutation("M_FENCE_START", expected=HOLDS),
    _call_mutation("M_SUPERSEDED"),
    _call_mutation("M_FENCE_JOIN"),
    _call_mutation("M_FENCE_CANCEL", "NL=1"),
    _call_mutation("M_SENT_LATE", "NDR=1"),
    _call_mutation("M_JOIN_SENDS"),
    _call_mutation("M_TAKE"),
    _call_mutation("M_LOST_CAS"),
    _call_mutation("M_TELL_EARLY"),
    _call_mutation("M_OPEN_SETTLES"),
    _call_mutation("M_REQUEUE_SETTLES"),
    _call_mutation("M_DRAIN_CANCELS", "NY=1"),
    _call_mutation("M_RUNNER_DRAIN", "NDR=1"),
    _call_mutation("M_CANCEL_ABSENT", "NCAN=1"),
    _call_mutation("M_SWEEP"),
    _call_mutation("M_NO_REPORT", "NCAN=1"),
    _call_mutation("M_TOLD_ENOUGH", "NCAN=1"),
    _call_mutation("M_REPORT_CLAIM", "NCAN=1"),
    _call_mutation("M_WORKER_REPORT", "NCAN=1"),
    _effects("keyed", "P_ALL", HOLDS),
    _effects("unsafe", "P_ALL UNSAFE=1", HOLDS),
    _effects("checked", "P_ALL CHECK=1", HOLDS),
    _effects("pruned", "P_ALL NP=1", HOLDS),
    _effects("undone", "P_ALL NU=1 NP=1", HOLDS),
    _effects("undone_unsafe", "P_ALL NU=1 UNSAFE=1", HOLDS),
    _effects("asked", "P_ALL ASK=1", HOLDS),
    _effects("asked_unsafe", "P_ALL ASK=1 UNSAFE=1 NT=1", HOLDS),
    _effects("reach_permitted", "P_REACH=6 ASK=1", BREAKS),
    _effect_mutation("M_PERMIT_ANY", "ASK=1 NC=3"),
    _effects("reach_undone", "P_REACH=5 NU=1", BREAKS),
    _effects("reach_new_key", "P_REACH=1", BREAKS),
    _effects("reach_recognised", "P_REACH=2", BREAKS),
    _effects("reach_pruned", "P_REACH=3 NP=1", BREAKS),
    _effects("reach_blocked", "P_REACH=4 UNSAFE=1", BREAKS),
    _effect_mutation("M_UNDO_FAILED", "NU=1"),
    _effect_mutation("M_UNDO_KEY", "NU=1"),
    _effect_mutation("M_UNIQUE", "UNSAFE=1"),
    _effect_mutation("M_NEW_KEY"),
    _effect_mutation("M_UNSAFE_AGAIN", "UNSAFE=1"),
    _effect_mutation("M_STICKY", "NC=3"),
    _effect_mutation("M_BEGUN"),
    _effect_mutation("M_CONCLUDED"),
    _effect_mutation("M_SETTLED_PROOF"),
    _effect_mutation("M_SAME_KEY"),
    _effect_mutation("M_CHECK_PROOF", "CHECK=1"),
    _effect_mutation("M_FORGET", "NP=1 NC=3"),
    _stops("two_calls", "P_ALL", HOLDS),
    _stops("settled", "P_ALL NR=2 NT=1", HOLDS),
    _stops("worker_lost", "P_ALL NC=1 NT=1 NL=2", HOLDS),
    _stops("two_gateways", "P_ALL NC=1 NG=2 NT=1", HOLDS),
    _stops("model_runner", "P_ALL NC=1 NM=1", HOLDS),
    _stops("reach_again", "P_REACH=1", BREAKS),
    _stops("reach_without_worker", "P_REACH=2 NC=1 NL=1", BREAKS),
    _stops("reach_sent_later", "P_REACH=3 NM=1", BREAKS),
    _stops("reach_second_stop", "P_REACH=4 NC=1 NG=2", BREAKS),
    _stop_mutation("M_BARRIER_LEDGER"),
    _stop_mutation("M_BARRIER_TOOLS"),
    _stop_mutation("M_BARRIER_RAISED", "NG=2"),
    _stop_mutation("M_EPOCH"),
    _stop_mutation("M_SHARED_VIEW"),
    _stop_mutation("M_TRY_VIEW", "NT=1"),
    _stop_mutation("M_GRANT"),
    _stop_mutation("M_OLDER", "NG=2"),
    _stop_mutation("M_LIST_FIRST"),
    _stop_mutation("M_LIST_HELD", "NL=1"),
    _stop_mutation("M_READERS", "NM=1"),
    _stop_mutation("M_NOTED", "NM=1"),
)
"""About three minutes of one core, half of them for compilation."""

LARGE: Final[tuple[Configuration, ...]] = (
    _task("everything", "P_ALL", HOLDS),
    _task("everything_reopened", "P_ALL NAB=1 NX=0", HOLDS),
    _task("repeatable", "P_ALL UNSAFE_MASK=0 NCAN=0", HOLDS),
    _task("two_calls_one_unsafe", "P_ALL NE=2 NC=2 NCAN=0 UNSAFE_MASK=2", HOLDS),
    _task("four_owners", "P_ALL NE=4 NM=3 NX=0 NCAN=0", HOLDS),
    _task("all_comes_to_an_end", "P_LIVE PERFECT_FD=1 NM=6 NCAN=0", HOLDS),
    # Each is the second of two guards: every later action checks the state, and nothing starts behind a closed fence.
    _mutation("M_OPEN_ANY", "", HOLDS),
    _mutation("M_CALL_OFF", "NX=0", HOLDS),
    _task("word_and_cancel", "P_ALL ND=1 NX=0", HOLDS),
    _task("word_comes_to_an_end", "P_LIVE PERFECT_FD=1 ND=1 NCAN=0", HOLDS),
    _task("reach_late_outcome", "P_REACH=8 ND=1 NDW=1 NCAN=0", BREAKS),
    _task("word_and_everything", "P_ALL ND=1 NDW=1", HOLDS),
    _task("word_given_twice", "P_ALL ND=2 NX=2 NCAN=0", HOLDS),
    _task("reach_second_word", "P_REACH=9 ND=2 NX=2 NCAN=0 NM=5", BREAKS),
    _task("elsewhere_withdrawn", "P_ALL ELSEWHERE_MASK=255 NW=1 NX=0", HOLDS),
    _task("elsewhere_and_word", "P_ALL ELSEWHERE_MASK=255 ND=1 NCAN=0", HOLDS),
    _task("elsewhere_repeatable", "P_ALL ELSEWHERE_MASK=255 NE=2 UNSAFE_MASK=0", HOLDS),
    _task("reach_effect_after_death", "P_REACH=10 ELSEWHERE_MASK=255 NE=2 NCAN=0", BREAKS),
    _task("reach_sent_again_by_word", "P_REACH=11 ELSEWHERE_MASK=255 NE=2 ND=1 NCAN=0", BREAKS),
    _mutation("M_LOST_ELSEWHERE", "ELSEWHERE_MASK=255 NE=2 NX=0 NCAN=0"),
    _epochs("more_claims", "P_ALL NG=4", HOLDS),
    _epochs("three_coordinators", "P_ALL NG=3 NR=3", HOLDS),
    # The registered epoch alone ensures these: the ledger refuses an equal epoch and one of an older generation.
    _epochs("m_claim_id", "P_ALL NG=3 M_CLAIM_ID", HOLDS),
    _epochs("m_generation", "P_ALL NG=3 M_GENERATION", HOLDS),
    _sessions("three_coordinators", "NR=3 NA=6", HOLDS),
    _calls("three_owners", "P_ALL NE=3 NX=1 NF=0", HOLDS),
    _calls("three_owners_and_cancel", "P_ALL NE=3 NCAN=1 NF=0", HOLDS),
    _calls("three_owners_and_drain", "P_ALL NE=3 NDR=1 NF=0", HOLDS),
    _calls("provider_fails", "P_ALL NX=1 NF=1", HOLDS),
    _effects("three_calls", "P_ALL NC=3 NP=1 CHECK=1", HOLDS),
    _effects("three_unsafe_calls", "P_ALL NC=3 NP=1 UNSAFE=1", HOLDS),
    _effects("three_calls_asked", "P_ALL NC=3 ASK=1", HOLDS),
    _effects("three_calls_undone", "P_ALL NC=3 NU=2", HOLDS),
    _stops("three_calls", "P_ALL NC=3 NL=1", HOLDS),
    _stops("two_gateways_two_calls", "P_ALL NG=2 NR=2", HOLDS),
    _stops("model_runner_and_settled", "P_ALL NM=1 NT=1 NL=1", HOLDS),
    _calls("all_come_to_an_end", "P_LIVE PERFECT_FD=1 NX=1 NDR=1 NT=2 NCAN=1 NL=1 NE=3", HOLDS),
)
"""About twelve more minutes, and up to 6 GB."""
