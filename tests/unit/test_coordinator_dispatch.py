"""Who is granted what of a list of offers."""

from __future__ import annotations

from services.coordinator.claims.assigning import assign
from services.coordinator.lease_store import ClaimRecord, HeldClaim, HeldSession, SessionRecord
from services.coordinator.sessions.session import AttachedSession, Timing
from tenure.domain.fairness import Slots
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import coordinator_service_pb2 as coordinator_pb
from tenure.v1 import task_pb2

NOW = 1000.0
HIGH, NORMAL, LOW = task_pb2.PRIORITY_HIGH, task_pb2.PRIORITY_NORMAL, task_pb2.PRIORITY_LOW


def session(name: str, free_slots: int) -> AttachedSession:
    record = SessionRecord(worker_id=name, coordinator_id="c", generation=1, started_at=0.0)
    hello = coordinator_pb.Hello(worker_id=name, free_slots=free_slots)
    return AttachedSession(HeldSession(name, record, 7, 100), hello, Timing(), attached_at=NOW, renewed_at=NOW)


def offers(spelled: str) -> list[pb.Offer]:
    """A letter for each: s for a suspect."""
    return [pb.Offer(task_id=f"{letter}{place}", suspect=letter == "s") for place, letter in enumerate(spelled)]


def assigned(spelled: str, *sessions: AttachedSession) -> list[tuple[str, str]]:
    return [(each.offer.task_id, each.session.worker_id) for each in assign(offers(spelled), sessions, NOW)]


def test_tasks_go_to_the_session_with_the_most_free_slots() -> None:
    assert assigned("aaaa", session("x", 2), session("y", 1)) == [("a0", "x"), ("a1", "x"), ("a2", "y")]


def test_no_session_gets_two_suspects() -> None:
    one, other = session("x", 4), session("y", 2)
    assert assigned("sssa", one, other) == [("s0", "x"), ("s1", "y"), ("a3", "x")]


def test_a_transferred_task_goes_to_its_target() -> None:
    sessions = session("x", 9), session("y", 1), session("z", 3)
    meant = pb.Offer(task_id="meant", only_worker_id="y")
    taken = [pb.Offer(task_id=f"taken{number}", not_worker_id="x") for number in range(2)]
    nobodys = pb.Offer(task_id="nobodys", only_worker_id="w")
    free = pb.Offer(task_id="free")
    response = assign([meant, *taken, nobodys, free], sessions, NOW)
    assert [(each.offer.task_id, each.session.worker_id) for each in response] == [
        ("meant", "y"),
        ("taken0", "z"),
        ("taken1", "z"),
        ("free", "x"),
    ]


def test_a_session_gets_only_tasks_of_the_tenants_of_its_pool() -> None:
    acmes, ours = session("x", 9), session("y", 1)
    acmes.set_tenants(frozenset({"acme"}))
    offered = [pb.Offer(task_id=f"{tenant}{n}", tenant=tenant) for n in range(2) for tenant in ("shop", "acme")]
    response = assign(offered, [acmes, ours], NOW)
    assert [(each.offer.task_id, each.session.worker_id) for each in response] == [
        ("shop0", "y"),
        ("acme0", "x"),
        ("acme1", "x"),
    ]


def test_a_session_with_a_suspect_gets_no_other() -> None:
    holds, about_to, free = session("x", 9), session("y", 8), session("z", 1)
    record = ClaimRecord(
        claim_id="c1",
        worker_id="x",
        session_id="x",
        generation=1,
        tenant="default",
        reason="WORKER_LOST",
        previous_epoch=1,
        suspect=True,
    )
    holds.hold(HeldClaim("t1", record, 200, 7), NOW, named=True)
    about_to.take_slot(suspect=True)
    assert assigned("ss", holds, about_to, free) == [("s0", "z")]
    about_to.put_slot_back(suspect=True)
    holds.claims["c1"].suspect = False  # it has made a step
    assert assigned("sss", holds, about_to, free) == [("s0", "x"), ("s1", "y"), ("s2", "z")]


def tiered(name: str, places: Slots) -> AttachedSession:
    one = session(name, places.any)
    one.report_slots(places, 0)
    return one


def assigned_tiers(tiers: list[task_pb2.Priority.ValueType], *sessions: AttachedSession) -> list[str]:
    offered = [pb.Offer(task_id=str(place), priority=tier) for place, tier in enumerate(tiers)]
    return [f"{each.tier.name[0]}{each.session.worker_id}" for each in assign(offered, sessions, NOW)]


def test_slots_kept_for_a_tier_are_filled_by_it_first() -> None:
    kept, free = tiered("kept", Slots(1, 0, 0)), tiered("free", Slots(2, 2, 2))
    assert assigned_tiers([HIGH, NORMAL, LOW], kept, free) == ["Hkept", "Nfree", "Lfree"]
    assert assigned_tiers([HIGH, HIGH, NORMAL, NORMAL], kept, free) == ["Hkept", "Hfree", "Nfree"]
    assert assigned_tiers([LOW, LOW, LOW], kept, free) == ["Lfree", "Lfree"]


def test_normal_tasks_leave_low_slots_free() -> None:
    normal, low = tiered("normal", Slots(2, 2, 0)), tiered("low", Slots(2, 2, 2))
    assert assigned_tiers([NORMAL, NORMAL, LOW, LOW], normal, low) == ["Nnormal", "Nnormal", "Llow", "Llow"]
