"""The rule that tells a stuck claim from a slow one."""

from __future__ import annotations

from services.coordinator.sessions.session import LONGEST_BACKOFF_SECONDS, ProgressWatch, ReportedProgress

TIMEOUT = 120.0


def watch() -> ProgressWatch:
    return ProgressWatch.begin(1000.0, TIMEOUT)


def test_a_claim_without_growth_is_stuck_after_the_timeout() -> None:
    claim = watch()
    claim.observe(ReportedProgress(), 1060.0)
    assert not claim.is_stuck(1120.0)
    assert claim.is_stuck(1120.1)


def test_growth_of_any_kind_extends_the_patience() -> None:
    for grown in (ReportedProgress(sequence=1), ReportedProgress(output_tokens=1), ReportedProgress(tool_signs=1)):
        claim = watch()
        claim.observe(grown, 1100.0)
        assert not claim.is_stuck(1220.0)
        assert claim.is_stuck(1220.1)


def test_repeated_progress_is_not_growth() -> None:
    claim = watch()
    for moment in (1010.0, 1060.0, 1110.0):
        claim.observe(ReportedProgress(sequence=5, output_tokens=7, tool_signs=2), moment)
    assert claim.is_stuck(1130.1)


def test_tokens_of_the_next_call_count_from_zero_again() -> None:
    claim = watch()
    claim.observe(ReportedProgress(sequence=5, output_tokens=900), 1010.0)
    claim.observe(ReportedProgress(sequence=7, output_tokens=1), 1020.0)
    claim.observe(ReportedProgress(sequence=7, output_tokens=2), 1100.0)
    assert not claim.is_stuck(1219.0)


def test_an_announced_wait_is_not_held_against_the_worker() -> None:
    claim = watch()
    claim.observe(ReportedProgress(backoff_seconds=60.0), 1100.0)
    claim.observe(ReportedProgress(backoff_seconds=10.0), 1150.0)
    assert not claim.is_stuck(1279.0)
    assert claim.is_stuck(1280.1)


def test_a_repeated_wait_does_not_extend_the_timeout() -> None:
    claim = watch()
    for moment in range(1000, 1300, 10):
        claim.observe(ReportedProgress(backoff_seconds=60.0), float(moment))
    assert claim.is_stuck(1180.1)


def test_a_wait_is_believed_up_to_a_bound() -> None:
    claim = watch()
    claim.observe(ReportedProgress(backoff_seconds=1e9), 1000.0)
    assert claim.is_stuck(1000.1 + TIMEOUT + LONGEST_BACKOFF_SECONDS)


def test_growth_ends_the_announced_wait() -> None:
    claim = watch()
    claim.observe(ReportedProgress(sequence=5, backoff_seconds=500.0), 1010.0)
    claim.observe(ReportedProgress(sequence=6), 1020.0)
    assert not claim.is_stuck(1140.0)
    assert claim.is_stuck(1140.1)
