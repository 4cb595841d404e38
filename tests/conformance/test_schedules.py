"""Laws of schedules, at replicas of the ledger over a real Postgres that sweep at the same time.

Time is the database's. Here a schedule's due times are moved instead: to its row a clock that leaps is the same.
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from services.checkpoint.schedules import rows
from tenure.domain.errors import AlreadyExists, InvalidRequest, LimitReached, NotFound, WrongState
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import schedule_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.v1 import tenant_service_pb2 as tenants
from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from tenure.v1.tenant_service_pb2_grpc import TenantServiceStub
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.server

YEARLY = "0 0 1 1 *"
STARTED, WAITING = pb.RUN_OUTCOME_STARTED, pb.RUN_OUTCOME_WAITING
SKIPPED, FAILED = pb.RUN_OUTCOME_SKIPPED, pb.RUN_OUTCOME_FAILED


class Schedules:
    """ScheduleService at a replica, and a hand on the due times."""

    def __init__(self, replica: Checkpoint) -> None:
        self.replica = replica
        self.stub: Any = ScheduleServiceStub(replica.channel)

    async def create(self, name: str = "nightly", cron: str = YEARLY, **fields: Any) -> pb.Schedule:
        request = pb.CreateScheduleRequest(
            name=name, cron=cron, **{"spec": task_pb2.TaskSpec(goal="tidy up"), **fields}
        )
        answer: pb.Schedule = (await self.stub.CreateSchedule(request, timeout=TIMEOUT_SECONDS)).schedule
        return answer

    async def get(self, schedule: str) -> pb.GetScheduleResponse:
        answer: pb.GetScheduleResponse = await self.stub.GetSchedule(
            pb.GetScheduleRequest(schedule=schedule, run_count=100), timeout=TIMEOUT_SECONDS
        )
        return answer

    async def update(self, schedule: str = "nightly", **fields: Any) -> pb.Schedule:
        request = pb.UpdateScheduleRequest(schedule=schedule, **fields)
        answer: pb.Schedule = (await self.stub.UpdateSchedule(request, timeout=TIMEOUT_SECONDS)).schedule
        return answer

    async def pause(self, schedule: str, reason: str = "holidays") -> pb.Schedule:
        request = pb.PauseScheduleRequest(schedule=schedule, reason=reason, actor="alice")
        answer: pb.Schedule = (await self.stub.PauseSchedule(request, timeout=TIMEOUT_SECONDS)).schedule
        return answer

    async def resume(self, schedule: str) -> pb.Schedule:
        value: pb.Schedule = (
            await self.stub.ResumeSchedule(pb.ResumeScheduleRequest(schedule=schedule), timeout=TIMEOUT_SECONDS)
        ).schedule
        return value

    async def trigger(self, schedule: str, request_id: str = "") -> task_pb2.Task:
        request = pb.TriggerScheduleRequest(schedule=schedule, request_id=request_id or uuid4().hex)
        answer: task_pb2.Task = (await self.stub.TriggerSchedule(request, timeout=TIMEOUT_SECONDS)).task
        return answer

    async def delete(self, schedule: str) -> bool:
        value: bool = (
            await self.stub.DeleteSchedule(pb.DeleteScheduleRequest(schedule=schedule), timeout=TIMEOUT_SECONDS)
        ).deleted
        return value

    async def come_due(self, schedule: pb.Schedule, minutes_ago: float = 0.0, *, cron: str = YEARLY) -> None:
        """As when the clock leapt: its next due time is so long ago, in whole minutes. `cron`: it has this one now."""
        await self.replica.query(
            "update ledger.schedules set look_at = '-infinity', cron = %s,"
            " next_due_at = date_trunc('minute', clock_timestamp()) - make_interval(secs => %s)"
            " where schedule_id = %s and not paused",
            cron,
            60 * minutes_ago,
            schedule.schedule_id,
        )

    async def change(self, changes: str, *parameters: Any, name: str = "nightly") -> None:
        """Changes the row of a schedule in the database."""
        statement = f"update ledger.schedules set {changes} where tenant = %s and name = %s"
        await self.replica.query(statement, *parameters, self.replica.tenant, name)

    async def column(self, expression: str, *, name: str = "nightly") -> list[Any]:
        """Returns what the row of a schedule has, read from the database."""
        statement = f"select {expression} from ledger.schedules where tenant = %s and name = %s"
        return [value for (value,) in await self.replica.query(statement, self.replica.tenant, name)]

    async def until(
        self, schedule: pb.Schedule, count: int, *outcomes: pb.RunOutcome.ValueType
    ) -> list[pb.ScheduleRun]:
        """Its runs, oldest first, once so many have come to one of these outcomes."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                runs = list(reversed((await self.get(schedule.schedule_id)).runs))
                if sum(run.outcome in (outcomes or (STARTED,)) for run in runs) >= count:
                    return runs
                await asyncio.sleep(0.02)

    async def looked_at(self, schedule: pb.Schedule) -> None:
        """A sweep has been here since the last `come_due`."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self.replica.query(
                "select 1 from ledger.schedules where schedule_id = %s and look_at = '-infinity'", schedule.schedule_id
            ):
                await asyncio.sleep(0.02)


@pytest.fixture
def schedules(replica: Checkpoint) -> Schedules:
    """ScheduleService of the module's replica, as a tenant of the test's own."""
    return Schedules(replica)


async def end(replica: Checkpoint, task_id: str) -> None:
    await (await replica.claim(task_id)).end()


class TestDueTimes:
    async def test_a_due_time_is_one_task_of_the_schedule(self, schedules: Schedules) -> None:
        schedule = await schedules.create()
        assert schedule.next_due_time.ToDatetime().strftime("%m-%d %H:%M") == "01-01 00:00"
        await schedules.come_due(schedule)
        (run,) = await schedules.until(schedule, 1)
        task = await schedules.replica.get(run.task_id)
        assert task.spec.goal == "tidy up"
        assert task.spec.source.kind == task_pb2.SOURCE_KIND_SCHEDULER
        assert task.spec.source.source_id == schedule.schedule_id
        assert task.spec.source.source_run_id == run.source_run_id == run.due_time.ToJsonString()
        assert run.task_state == task_pb2.TASK_STATE_QUEUED
        after = (await schedules.get("nightly")).schedule
        assert (after.started_runs, after.skipped_runs) == (1, 0)
        assert after.next_due_time == schedule.next_due_time

    async def test_three_sweepers_create_each_run_once(self, checkpoint: MakeCheckpoint) -> None:
        """Ten schedules, four due times each; three replicas look for them all the time."""
        replica = await checkpoint()
        for _ in range(2):
            await checkpoint(dsn=replica.dsn)
        schedules = Schedules(replica)
        made = [await schedules.create(f"s-{number}", overlap_policy=pb.OVERLAP_POLICY_QUEUE) for number in range(10)]
        for minutes_ago in (8, 6, 4, 2):
            await asyncio.gather(*(schedules.come_due(one, minutes_ago) for one in made))
            for one in made:
                await schedules.looked_at(one)
        counts = await replica.query(
            "select count(*), count(distinct request_id), count(distinct r.source_run_id) from ledger.tasks"
            " left join ledger.schedule_runs r using (task_id)"
        )
        assert counts[0][:2] == (10, 10)
        ((runs, waiting),) = await replica.query(
            "select count(*), count(*) filter (where outcome = 'WAITING') from ledger.schedule_runs"
        )
        assert (runs, waiting) == (40, 30)
        ((started, skipped, failed),) = await replica.query(
            "select sum(started_runs), sum(skipped_runs), sum(failed_runs) from ledger.schedules"
        )
        assert (started, skipped, failed) == (10, 0, 0)

    async def test_a_run_whose_record_is_lost_finds_its_task_again(self, schedules: Schedules) -> None:
        """As after a ledger's row of the schedule went back: the request_id is the run's identity."""
        schedule = await schedules.create()
        await schedules.come_due(schedule, 2)
        (first,) = await schedules.until(schedule, 1)
        await schedules.replica.query("delete from ledger.schedule_runs where schedule_id = %s", schedule.schedule_id)
        await schedules.change("next_due_at = %s, look_at = '-infinity'", first.due_time.ToDatetime())
        (again,) = await schedules.until(schedule, 1)
        assert again.task_id == first.task_id

    async def test_after_a_long_outage_only_the_newest_runs_are_caught_up(self, schedules: Schedules) -> None:
        schedule = await schedules.create(overlap_policy=pb.OVERLAP_POLICY_QUEUE, catch_up_window={"seconds": 86400})
        await schedules.come_due(schedule, 60, cron="* * * * *")
        runs = await schedules.until(schedule, 10, STARTED, WAITING)
        (left_out,) = [run for run in runs if run.outcome == SKIPPED]
        assert left_out.reason == "CATCH_UP_LIMIT"
        assert left_out.due_times in {51, 52}

    async def test_an_ended_schedule_stays_without_due_times(self, schedules: Schedules) -> None:
        ((start, last),) = await schedules.replica.query(
            "select date_trunc('minute', now()), date_trunc('minute', now()) + interval '1 hour'"
        )
        schedule = await schedules.create(cron=f"{last.minute} * * * *", end_time=last)
        assert schedule.next_due_time.ToDatetime() == last.replace(tzinfo=None)
        assert start < last
        await schedules.change("next_due_at = %s, ends_at = %s, look_at = '-infinity'", start, start)
        await schedules.until(schedule, 1)
        after = (await schedules.get("nightly")).schedule
        assert not after.HasField("next_due_time")
        assert await schedules.column("look_at is null") == [True]

    async def test_the_record_of_runs_is_bounded(self, schedules: Schedules) -> None:
        schedule = await schedules.create(overlap_policy=pb.OVERLAP_POLICY_SKIP)
        await schedules.replica.query(
            "insert into ledger.schedule_runs (schedule_id, source_run_id, due_at, outcome, recorded_at)"
            " select %s, n::text, now() - n * interval '1 hour', 'SKIPPED', now() - n * interval '1 hour'"
            " from generate_series(1, 300) n",
            schedule.schedule_id,
        )
        await schedules.come_due(schedule)
        await schedules.until(schedule, 1)
        count = "select count(*) from ledger.schedule_runs where schedule_id = %s"
        assert await schedules.replica.query(count, schedule.schedule_id) == [(100,)]


class TestOverlap:
    async def test_queue_starts_runs_one_after_another_in_order(self, schedules: Schedules) -> None:
        schedule = await schedules.create(overlap_policy=pb.OVERLAP_POLICY_QUEUE)
        for minutes_ago in (6, 4, 2):
            await schedules.come_due(schedule, minutes_ago)
            await schedules.looked_at(schedule)
        assert (await schedules.get("nightly")).schedule.waiting_runs == 2
        started: list[str] = []
        for count in (1, 2, 3):
            runs = await schedules.until(schedule, count)
            (now,) = [run for run in runs if run.task_state == task_pb2.TASK_STATE_QUEUED]
            started.append(now.source_run_id)
            await end(schedules.replica, now.task_id)
        assert started == sorted(started)
        assert (await schedules.get("nightly")).schedule.waiting_runs == 0

    async def test_cancel_previous_cancels_then_starts(self, schedules: Schedules) -> None:
        schedule = await schedules.create(overlap_policy=pb.OVERLAP_POLICY_CANCEL_PREVIOUS)
        await schedules.come_due(schedule, 4)
        (first,) = await schedules.until(schedule, 1)
        owner = await schedules.replica.claim(first.task_id)
        await schedules.come_due(schedule, 2)
        await schedules.until(schedule, 1, WAITING)
        assert (await schedules.replica.get(first.task_id)).cancel_requested
        await schedules.come_due(schedule, 1)
        replaced = next(run for run in await schedules.until(schedule, 1, SKIPPED) if run.outcome == SKIPPED)
        assert replaced.reason == "REPLACED"
        await owner.end(task_pb2.TASK_STATE_CANCELLED)
        runs = await schedules.until(schedule, 2)
        assert [run.outcome for run in runs].count(STARTED) == 2
        kinds = [entry.body.WhichOneof("body") for entry in await schedules.replica.entries(first.task_id)]
        assert kinds.count("cancel_request") == 1

    async def test_cancel_previous_cancels_a_queued_task_at_once(self, schedules: Schedules) -> None:
        schedule = await schedules.create(overlap_policy=pb.OVERLAP_POLICY_CANCEL_PREVIOUS)
        await schedules.come_due(schedule, 4)
        (first,) = await schedules.until(schedule, 1)
        await schedules.come_due(schedule, 2)
        await schedules.until(schedule, 2)
        assert (await schedules.replica.get(first.task_id)).state == task_pb2.TASK_STATE_CANCELLED


class TestQuotas:
    async def test_a_run_above_the_tenants_rate_is_postponed(self, schedules: Schedules) -> None:
        """The rate is used up for minutes by what was put off before: no slow machine sees the end of that."""
        replica = schedules.replica
        await self.limit(replica, tenants.QUOTA_POLICY_DELAY)
        for _ in range(4):
            await replica.create()
        await self.limit(replica, tenants.QUOTA_POLICY_REFUSE)
        schedule = await schedules.create()
        await schedules.come_due(schedule)
        (run,) = await schedules.until(schedule, 1, STARTED, FAILED)
        assert run.outcome == STARTED
        task = await replica.get(run.task_id)
        assert (task.state, task.reason) == (task_pb2.TASK_STATE_QUEUED, "TENANT_QUOTA")
        delay = "select extract(epoch from starts_at - created_at)::int from ledger.tasks where task_id = %s"
        assert (await replica.query(delay, task.task_id))[0][0] > 60
        for asking in (replica.create(), schedules.trigger(schedule.schedule_id)):
            with pytest.raises(LimitReached) as refused:
                await asking
            assert refused.value.reason == "TENANT_QUOTA"

    async def test_a_run_under_a_quota_of_0_is_recorded_as_not_created(self, schedules: Schedules) -> None:
        await self.limit(schedules.replica, tenants.QUOTA_POLICY_DELAY, most=0)
        schedule = await schedules.create()
        await schedules.come_due(schedule)
        (run,) = await schedules.until(schedule, 1, STARTED, FAILED)
        assert (run.outcome, run.reason, run.task_id) == (FAILED, "NOT_CREATED", "")
        assert "0 of 0 submits a minute" in run.message

    async def limit(self, replica: Checkpoint, policy: tenants.QuotaPolicy.ValueType, *, most: int = 1) -> None:
        """The submits a minute."""
        quota = tenants.Quota(kind=tenants.QUOTA_KIND_SUBMITS_PER_MINUTE, most=most, policy=policy)
        request = tenants.UpdateTenantLimitsRequest(quotas=[quota], reason="their plan", actor="olga")
        await TenantServiceStub(replica.channel).UpdateTenantLimits(request, timeout=TIMEOUT_SECONDS)


class TestUpdates:
    async def test_an_update_changes_the_given_fields_only(self, schedules: Schedules) -> None:
        first = await schedules.create(time_zone="Europe/Berlin", catch_up_window={"seconds": 600})
        changed = await schedules.update(cron="30 7 2 1 *", overlap_policy=pb.OVERLAP_POLICY_QUEUE)
        assert (changed.cron, changed.overlap_policy) == ("30 7 2 1 *", pb.OVERLAP_POLICY_QUEUE)
        assert (changed.time_zone, changed.catch_up_window, changed.spec) == (
            first.time_zone,
            first.catch_up_window,
            first.spec,
        )
        assert (first.revision, changed.revision) == (1, 2)
        assert changed.next_due_time.ToDatetime().strftime("%m-%d %H:%M") == "01-02 06:30"
        bounded = await schedules.update(time_zone="UTC", end_time={"seconds": 4_000_000_000})
        assert (bounded.next_due_time.ToDatetime().hour, bounded.HasField("end_time")) == (7, True)
        assert not (await schedules.update(clear_end_time=True)).HasField("end_time")
        repeated = await schedules.create(time_zone="Europe/Berlin", catch_up_window={"seconds": 600})
        schedule = (await schedules.get("nightly")).schedule
        for each in (repeated, schedule):
            each.ClearField("update_time")  # the look for due times that an update brings forward may come in between
        assert repeated == schedule

    async def test_of_two_updates_of_a_revision_one_is_refused(self, schedules: Schedules) -> None:
        await schedules.create()
        changed = await schedules.update(cron="0 1 * * *", expected_revision=1)
        with pytest.raises(WrongState) as refused:
            await schedules.update(cron="0 2 * * *", expected_revision=1)
        assert (refused.value.reason, refused.value.metadata) == ("SCHEDULE_CHANGED", {"revision": "2"})
        repeated = await schedules.update(cron="0 1 * * *", expected_revision=1)
        for one in (changed, repeated):  # its time moves with the sweep's look at it, too
            one.ClearField("update_time")
        assert repeated == changed
        with pytest.raises(NotFound):
            await schedules.update("another", cron="0 1 * * *")

    async def test_due_runs_use_the_old_schedule_and_later_ones_the_new(self, schedules: Schedules) -> None:
        """No sweep has looked at it yet: the update decides it."""
        schedule = await schedules.create()
        await schedules.change("look_at = 'infinity', next_due_at = date_trunc('minute', clock_timestamp())")
        changed = await schedules.update(cron="0 0 2 1 *", spec=task_pb2.TaskSpec(goal="tidy up twice"))
        (run,) = await schedules.until(schedule, 1)
        assert (await schedules.replica.get(run.task_id)).spec.goal == "tidy up"
        assert (changed.started_runs, changed.next_due_time.ToDatetime().day) == (1, 2)
        await end(schedules.replica, run.task_id)
        await schedules.come_due(changed, 1)
        later = (await schedules.until(schedule, 2))[-1]
        assert (await schedules.replica.get(later.task_id)).spec.goal == "tidy up twice"

    async def test_a_paused_schedule_stays_paused(self, schedules: Schedules) -> None:
        await schedules.create()
        await schedules.pause("nightly")
        changed = await schedules.update(cron="0 0 3 1 *")
        assert (changed.paused, changed.HasField("next_due_time")) == (True, False)
        assert (await schedules.resume("nightly")).next_due_time.ToDatetime().day == 3

    async def test_a_decided_run_is_not_due_after_a_clock_step_back(self, schedules: Schedules) -> None:
        """The database's clock cannot be set here: its due time is recorded for later instead."""
        schedule = await schedules.create()
        await schedules.come_due(schedule)
        (run,) = await schedules.until(schedule, 1)
        later = "update ledger.schedule_runs set due_at = '2099-06-01T00:00:00Z' where schedule_id = %s"
        await schedules.replica.query(later, schedule.schedule_id)
        assert (await schedules.update(cron="0 0 * * *")).next_due_time.ToJsonString() == "2099-06-02T00:00:00Z"
        assert run.task_id

    @pytest.mark.parametrize(
        ("wrong", "field"),
        [
            ({"cron": "99 * * * *"}, "cron"),
            ({"cron": "0 0 30 2 *"}, "cron"),
            ({"time_zone": "Mars/Olympus"}, "time_zone"),
            ({"catch_up_window": {"seconds": 1}}, "catch_up_window"),
            ({"end_time": {"seconds": 1}}, "cron"),
            ({"end_time": {"seconds": 1}, "clear_end_time": True}, "clear_end_time"),
            ({"spec": task_pb2.TaskSpec(goal="")}, "spec.goal"),
            ({"expected_revision": -1}, "expected_revision"),
        ],
    )
    async def test_an_invalid_update_is_refused_and_changes_nothing(
        self, schedules: Schedules, wrong: Any, field: str
    ) -> None:
        first = await schedules.create()
        with pytest.raises(InvalidRequest) as refused:
            await schedules.update(**wrong)
        assert [violation.field for violation in refused.value.violations] == [field]
        assert (await schedules.get("nightly")).schedule == first


class TestVerbs:
    async def test_creating_a_schedule_again_is_idempotent(self, schedules: Schedules) -> None:
        first = await schedules.create()
        assert await schedules.create() == first
        with pytest.raises(AlreadyExists) as refused:
            await schedules.create(cron="0 1 * * *")
        assert refused.value.reason == "SCHEDULE_EXISTS"

    @pytest.mark.parametrize(
        "wrong",
        [
            {"cron": "99 * * * *"},
            {"name": "00000000-0000-7000-8000-000000000000"},
            {"start_time": {"seconds": 9}, "end_time": {"seconds": 8}},
            {"spec": task_pb2.TaskSpec(goal="x", source=task_pb2.Source(source_id="mine"))},
        ],
    )
    async def test_an_invalid_schedule_is_refused(self, schedules: Schedules, wrong: Any) -> None:
        with pytest.raises(InvalidRequest):
            await schedules.create(**wrong)

    async def test_a_paused_schedule_makes_no_runs_due(self, schedules: Schedules) -> None:
        schedule = await schedules.create()
        paused = await schedules.pause("nightly")
        assert (paused.paused, paused.pause_reason, paused.pause_actor) == (True, "holidays", "alice")
        assert not paused.HasField("next_due_time")
        assert (await schedules.pause(schedule.schedule_id, "other words")).pause_reason == "holidays"
        await schedules.change("next_due_at = now() - interval '1 hour'")
        resumed = await schedules.resume("nightly")
        assert not resumed.paused
        assert await schedules.column("next_due_at > now()") == [True]
        assert (await schedules.resume("nightly")).started_runs == 0

    async def test_a_waiting_run_is_not_started_while_paused(self, schedules: Schedules) -> None:
        schedule = await schedules.create(overlap_policy=pb.OVERLAP_POLICY_QUEUE)
        for minutes_ago in (4, 2):
            await schedules.come_due(schedule, minutes_ago)
            await schedules.looked_at(schedule)
        first = (await schedules.until(schedule, 1))[0]
        await schedules.pause("nightly")
        await end(schedules.replica, first.task_id)
        other = await schedules.create("other")
        await schedules.come_due(other)
        await schedules.until(other, 1)
        assert (await schedules.get("nightly")).schedule.waiting_runs == 1
        await schedules.resume("nightly")
        await schedules.until(schedule, 2)

    async def test_a_trigger_is_a_task_now_once_for_each_request_id(self, schedules: Schedules) -> None:
        schedule = await schedules.create()
        await schedules.pause("nightly")
        first = await schedules.trigger("nightly", "r1")
        assert (await schedules.trigger(schedule.schedule_id, "r1")).task_id == first.task_id
        assert (await schedules.trigger("nightly", "r2")).task_id != first.task_id
        assert first.spec.source.source_run_id == "trigger/r1"
        result = await schedules.get("nightly")
        assert result.schedule.started_runs == 2
        assert {run.source_run_id for run in result.runs} == {"trigger/r1", "trigger/r2"}

    async def test_a_repeated_trigger_has_its_task_after_an_update(self, schedules: Schedules) -> None:
        await schedules.create()
        first = await schedules.trigger("nightly", "r1")
        await schedules.update(spec=task_pb2.TaskSpec(goal="another"))
        again = await schedules.trigger("nightly", "r1")
        assert (again.task_id, again.spec.goal) == (first.task_id, "tidy up")
        assert (await schedules.trigger("nightly", "r2")).spec.goal == "another"
        assert (await schedules.get("nightly")).schedule.started_runs == 2

    async def test_triggers_of_a_paused_schedule_keep_the_newest_runs(
        self, schedules: Schedules, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rows, "RUNS_KEPT", 2)
        await schedules.create()
        await schedules.pause("nightly")
        active = (await schedules.trigger("nightly", "active")).task_id
        for number in range(4):
            await end(schedules.replica, (await schedules.trigger("nightly", f"r{number}")).task_id)
        runs = {run.source_run_id: run.task_id for run in (await schedules.get("nightly")).runs}
        assert set(runs) == {"trigger/active", "trigger/r2", "trigger/r3"}
        assert runs["trigger/active"] == active, "its task has not ended"

    async def test_a_due_time_finds_a_triggered_task_running(self, schedules: Schedules) -> None:
        schedule = await schedules.create()
        await schedules.trigger("nightly")
        await schedules.come_due(schedule)
        await schedules.until(schedule, 1, SKIPPED)

    async def test_a_deleted_schedule_is_gone_and_its_tasks_continue(self, schedules: Schedules) -> None:
        schedule = await schedules.create()
        task = await schedules.trigger("nightly", "r")
        assert await schedules.delete("nightly")
        assert not await schedules.delete("nightly")
        with pytest.raises(NotFound):
            await schedules.get("nightly")
        assert (await schedules.replica.get(task.task_id)).state == task_pb2.TASK_STATE_QUEUED
        again = await schedules.create()
        assert again.schedule_id != schedule.schedule_id
        assert (await schedules.trigger("nightly", "r")).task_id != task.task_id

    async def test_another_tenants_schedule_is_not_found(self, schedules: Schedules) -> None:
        await schedules.create()
        async with open_channel(schedules.replica.address, tenant="others") as channel:
            stub: Any = ScheduleServiceStub(channel)
            with pytest.raises(NotFound):
                await stub.GetSchedule(pb.GetScheduleRequest(schedule="nightly"), timeout=TIMEOUT_SECONDS)
            assert not (await stub.ListSchedules(pb.ListSchedulesRequest(), timeout=TIMEOUT_SECONDS)).schedules
            assert not (
                await stub.DeleteSchedule(pb.DeleteScheduleRequest(schedule="nightly"), timeout=TIMEOUT_SECONDS)
            ).deleted

    async def test_a_list_is_paged_by_name(self, schedules: Schedules) -> None:
        for name in "cab":
            await schedules.create(name)
        first = await schedules.stub.ListSchedules(pb.ListSchedulesRequest(page_size=2), timeout=TIMEOUT_SECONDS)
        assert [one.name for one in first.schedules] == ["a", "b"]
        rest = await schedules.stub.ListSchedules(
            pb.ListSchedulesRequest(page_size=2, page_token=first.next_page_token),
            timeout=TIMEOUT_SECONDS,
        )
        assert [one.name for one in rest.schedules] == ["c"]
        assert rest.next_page_token == ""

    async def test_the_limit_of_schedules_holds_at_two_replicas(self, checkpoint: MakeCheckpoint) -> None:
        """Also when the last ones are created at the same moment at two replicas."""
        replica = await checkpoint(max_schedules_per_tenant=3)
        other = await checkpoint(dsn=replica.dsn, max_schedules_per_tenant=3)
        both = [Schedules(replica), Schedules(other)]
        results = await asyncio.gather(
            *(both[number % 2].create(f"s-{number}") for number in range(8)), return_exceptions=True
        )
        assert sum(isinstance(result, pb.Schedule) for result in results) == 3
        refused = [result for result in results if isinstance(result, LimitReached)]
        assert {error.reason for error in refused} == {"TOO_MANY_SCHEDULES"}
        assert len(refused) == 5


class TestFailures:
    async def test_a_failed_run_is_recorded_and_the_next_one_runs(self, schedules: Schedules) -> None:
        schedule = await schedules.create()
        ((due,),) = await schedules.replica.query(
            "select to_char(date_trunc('minute', now()) at time zone 'UTC' - interval '2 hours',"
            ' \'YYYY-MM-DD"T"HH24:MI:SS"Z"\')'
        )
        await schedules.replica.create(f"schedule/{schedule.schedule_id}/{due}", goal="somebody else's")
        await schedules.change("next_due_at = %s::timestamptz, look_at = '-infinity', catch_up_seconds = 86400", due)
        (failed,) = await schedules.until(schedule, 1, FAILED)
        assert failed.reason == "NOT_CREATED"
        assert "REQUEST_ID_REUSED" in failed.message
        await schedules.come_due(schedule)
        await schedules.until(schedule, 1)
        after = (await schedules.get("nightly")).schedule
        assert (after.failed_runs, after.started_runs, after.problem) == (1, 1, "")

    @pytest.mark.parametrize("broken", ["time_zone = 'Atlantis/Capital'", r"spec = '\xff'::bytea", "cron = 'no'"])
    async def test_a_broken_schedule_is_postponed_and_others_run(self, schedules: Schedules, broken: str) -> None:
        bad = await schedules.create("bad")
        good = await schedules.create("good")
        await schedules.change(broken, name="bad")
        await schedules.come_due(bad, 5, cron="no" if broken == "cron = 'no'" else YEARLY)
        await schedules.looked_at(bad)
        await schedules.come_due(good)
        await schedules.until(good, 1)
        assert await schedules.column("problem <> '' and look_at > now() + interval '30 seconds'", name="bad") == [True]

    async def test_a_stored_cron_expression_that_cannot_be_read_is_refused(self, schedules: Schedules) -> None:
        """Of a release with another reader, or written by hand: the calls answered INTERNAL."""
        await schedules.create()
        await schedules.pause("nightly")
        await schedules.change("cron = '99 3 * * *', next_due_at = now() - interval '1 hour'")
        for call in (schedules.resume("nightly"), schedules.update(time_zone="Europe/Berlin")):
            with pytest.raises(WrongState) as refused:
                await call
            assert (refused.value.reason, refused.value.metadata["cron"]) == ("UNREADABLE_CRON", "99 3 * * *")
        assert (await schedules.update(cron="0 3 * * *")).cron == "0 3 * * *"
        assert not (await schedules.resume("nightly")).paused

    async def test_an_unknown_time_zone_is_refused_with_its_name(self, schedules: Schedules) -> None:
        """A restore elsewhere, or an older tzdata: the calls answered INTERNAL."""
        await schedules.create()
        await schedules.pause("nightly")
        await schedules.change("time_zone = 'Atlantis/Capital', next_due_at = now() - interval '1 hour'")
        with pytest.raises(WrongState) as refused:
            await schedules.resume("nightly")
        assert (refused.value.reason, refused.value.metadata["time_zone"]) == ("UNKNOWN_TIME_ZONE", "Atlantis/Capital")
        with pytest.raises(WrongState):
            await schedules.update(cron="0 3 * * *")
        assert (await schedules.update(time_zone="UTC")).time_zone == "UTC"
        assert not (await schedules.resume("nightly")).paused
