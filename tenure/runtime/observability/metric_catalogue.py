"""Every metric of Tenure: its name, who reports it, its labels and what it means.

A metric exists where it is counted. This list describes it, once for all readers: the texts of the Prometheus endpoint,
docs/metrics.md, and the tests that compare both with the code, the dashboards and the alerts.

    python -m tenure.runtime.observability.metric_catalogue     # writes the tables of docs/metrics.md
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, NamedTuple

TOTAL: Final = "_total"
ALL: Final = ("gateway", "coordinator", "checkpoint", "tools", "worker", "models")
STORES: Final = ("checkpoint", "tools", "models")


class Described(NamedTuple):
    """A metric. `labels`: each with its values in words. `kind`: counter, gauge or histogram.

    `at_start`: it is there from the beginning, and not only after what it counts has happened.
    """

    name: str
    kind: str
    services: tuple[str, ...]
    labels: dict[str, str]
    help: str


def _counter(name: str, services: tuple[str, ...], text: str, **labels: str) -> Described:
    assert name.endswith(TOTAL), name
    return Described(name, "counter", services, labels, text)


def _gauge(name: str, services: tuple[str, ...], text: str, **labels: str) -> Described:
    assert not name.endswith(TOTAL), name
    return Described(name, "gauge", services, labels, text)


def _seconds(name: str, services: tuple[str, ...], text: str, **labels: str) -> Described:
    assert name.endswith("_seconds"), name
    return Described(name, "histogram", services, labels, text)


_RPC: Final = {"grpc_service": "the full name", "grpc_method": "the method", "grpc_type": "unary, server_stream, …"}
_GATEWAY, _COORDINATOR, _CHECKPOINT, _TOOLS, _WORKER, _MODELS = ((name,) for name in ALL)
_MODEL: Final = {
    "provider": "the provider: anthropic, openai",
    "model": "the model as the task names it; beyond 50 models of a process `(others)`",
}
_ENDPOINT: Final = "the name of the endpoint"
_QUEUE: Final = {"queue": "the queue; beyond 100 queues of a process `(others)`", "priority": "HIGH, NORMAL, LOW"}
_TENANT: Final = {"tenant": "the tenant; beyond TENURE_METRICS_TENANTS tenants of a process `(others)`"}
_SOURCE: Final = {"source": "the tool source"}

SECTIONS: Final[dict[str, tuple[Described, ...]]] = {
    "Tasks": (
        _seconds(
            "tenure_pickup_seconds",
            _CHECKPOINT,
            "from QUEUED to RUNNING. A TAKEOVER counts from the moment at which the ledger learned of the lost claim",
            cause="NEW: a new task; TAKEOVER: its claim was lost; RESUMED: after a wait, a retry or a release",
        ),
        _counter(
            "tenure_transitions_total",
            _CHECKPOINT,
            "committed transitions",
            state="the new state",
            reason="the reason code, or OTHER",
        ),
        _counter("tenure_budget_stops_total", _CHECKPOINT, "tasks that ended at a limit", reason="the limit"),
        _counter(
            "tenure_budget_requests_total", _CHECKPOINT, "waits of tasks for a higher limit", limit="the limit reached"
        ),
        _gauge("tenure_tasks_in_doubt", _CHECKPOINT, "tasks that wait until a person resolves a call in doubt"),
        _gauge("tenure_tasks_in_doubt_age_seconds", _CHECKPOINT, "how long the first of them has waited"),
        _counter(
            "tenure_spawns_total", _CHECKPOINT, "calls that spawn sub-agents", refused="true: refused; false: spawned"
        ),
        _counter("tenure_sub_agent_events_total", _CHECKPOINT, "handled events of task trees", what="the kind"),
        _counter("tenure_close_outs_total", _COORDINATOR, "tasks ended without a live owner", reason="the reason code"),
    ),
    "Queues and workers": (
        _gauge("tenure_queue_depth", _CHECKPOINT, "queued tasks of all tenants", **_QUEUE),
        _gauge(
            "tenure_queue_held_back",
            _CHECKPOINT,
            "of these, tasks of tenants at their running quota, and stopped tasks",
            **_QUEUE,
        ),
        _gauge("tenure_queue_stopped", _CHECKPOINT, "of the tasks held back, those that a stop covers", **_QUEUE),
        _gauge(
            "tenure_queue_oldest_age_seconds", _CHECKPOINT, "how long the oldest of the others has waited", **_QUEUE
        ),
        _gauge("tenure_stops", _CHECKPOINT, "stops of operators in force"),
        _gauge("tenure_sessions", _COORDINATOR, "workers attached to this replica"),
        _gauge("tenure_slots", _COORDINATOR, "slots of the workers attached to this replica", state="free, used"),
        _counter("tenure_grants_total", _COORDINATOR, "granted tasks"),
        _counter("tenure_claims_refused_total", _COORDINATOR, "claims that etcd did not take", refusal="why"),
        _counter("tenure_claims_unregistered_total", _COORDINATOR, "claims that the ledger did not register"),
        _counter(
            "tenure_requeued_total", _COORDINATOR, "lost claims whose tasks were queued again", reason="the reason code"
        ),
        _seconds(
            "tenure_loss_detection_seconds",
            _COORDINATOR,
            "from the last sign of life of a worker to the moment at which its claims were found lost: the loss went "
            "unnoticed for at most as long. A takeover takes this time and its pickup",
            reason="the reason code",
        ),
        _counter(
            "tenure_broken_sessions_total",
            _COORDINATOR,
            "sessions whose stream broke",
            end="ENDED: its tasks were queued again; ATTACHED_ELSEWHERE: the worker went to another replica",
        ),
        _counter(
            "tenure_sessions_slow_total", _COORDINATOR, "session streams ended because the worker did not read them"
        ),
        _gauge(
            "tenure_claims_at_risk",
            _COORDINATOR,
            "claims at this replica whose lease had no renewal for two intervals",
            cause="WORKER: it sent none; ETCD: it did not answer the newest one",
        ),
        _counter(
            "tenure_renewals_missed_total",
            _COORDINATOR,
            "how often the renewals of a worker with claims stopped for two intervals",
            cause="as above",
        ),
        _gauge(
            "tenure_lease_left_ratio",
            _COORDINATOR,
            "the shortest rest of a lease with claims at this replica; 1: just renewed, 0: it has ended",
        ),
        _gauge(
            "tenure_claims_idle_seconds",
            _COORDINATOR,
            "how long the claim at this replica with the oldest progress has made none; announced waits do not count",
        ),
        _gauge("tenure_worker_attached", _WORKER, "1: attached to a coordinator; 0: not, for more than 5 s"),
        _gauge("tenure_worker_slots", _WORKER, "slots of this worker", state="free, used, paused (after a crash)"),
        _counter("tenure_worker_releases_total", _WORKER, "tasks that left this worker", reason="why, or LOST"),
        _counter(
            "tenure_worker_detachments_total", _WORKER, "session streams that broke", why="the class of the error"
        ),
        _counter("tenure_worker_streams_broken_total", _WORKER, "broken streams to a service", peer="the service"),
        _counter("tenure_worker_results_rejected_total", _WORKER, "results that did not fit their schema"),
    ),
    "Fences and leases": (
        _counter(
            "tenure_stale_epoch_rejections_total",
            STORES,
            "stale writes that a fence refused",
            service="checkpoint: commits; tools: calls; models: model calls",
        ),
        _counter("tenure_refusals_dropped_total", _CHECKPOINT, "refused writes that only the log has"),
        _gauge("tenure_generation", _COORDINATOR, "the generation of the epochs"),
        _counter("tenure_generation_raised_total", _COORDINATOR, "how often this replica raised it"),
        _gauge("tenure_leases", _COORDINATOR, "named leases that are held"),
        _counter("tenure_leases_granted_total", _COORDINATOR, "granted named leases", reason="the reason code"),
        _counter("tenure_leases_refused_total", _COORDINATOR, "requests for a lease that another holder has"),
        _counter("tenure_leases_lost_total", _COORDINATOR, "leases that their holder found lost"),
    ),
    "Models": (
        _counter(
            "tenure_model_calls_total",
            _WORKER,
            "model calls that ended",
            **_MODEL,
            outcome="ANSWERED, or the class of the failure: RATE_LIMITED (429), OVERLOADED, TIMEOUT, …",
        ),
        _seconds("tenure_model_call_seconds", _WORKER, "how long they took", **_MODEL),
        _counter(
            "tenure_model_bills_total",
            _CHECKPOINT,
            "settled model attempts, failed ones included",
            **_MODEL,
            end="SETTLED by the owner; LOST: by the ledger, for an owner that was lost",
            priced="false: the ledger has no price for the model",
        ),
        _counter(
            "tenure_model_tokens_total",
            _CHECKPOINT,
            "billed tokens",
            **_MODEL,
            kind="input, output, cache_read, cache_creation",
        ),
        _counter("tenure_model_cost_usd_total", _CHECKPOINT, "billed money in dollars", **_MODEL),
        _counter(
            "tenure_worker_token_counts_total",
            _WORKER + _MODELS,
            "prompts that a provider was asked to count",
            result="COUNTED, or why not",
        ),
        _counter("tenure_worker_model_calls_joined_total", _WORKER, "model calls at a model runner that were joined"),
        _counter(
            "tenure_worker_model_rejoins_total",
            _WORKER,
            "broken streams of calls at a model runner, after which the worker asked again",
            reason="why the stream broke",
        ),
        _gauge(
            "tenure_models_calls",
            _MODELS,
            "model calls that this model runner makes",
            state="ACCEPTED: waits for its rate limit; SENT",
        ),
        _gauge("tenure_models_calls_max", _MODELS, "the most model calls that this model runner makes at once"),
        _counter(
            "tenure_models_requests_total",
            _MODELS,
            "requests for a model call that a model runner answered",
            way="BEGUN; TAKEN_OVER: begun in place of a runner that sent nothing; JOINED; RELAYED to the runner that "
            "makes it; RECORDED: from the record; LOST: its runner was found dead",
        ),
        _counter(
            "tenure_models_calls_ended_total",
            _MODELS,
            "model calls that ended at this model runner",
            outcome="ANSWERED, or the class of the failure; OVERTAKEN: the record has another end, or a later call",
        ),
        _counter(
            "tenure_models_endpoint_calls_total",
            _MODELS,
            "requests to the endpoints of the providers",
            endpoint=_ENDPOINT,
            outcome="ANSWERED, or the class of the failure",
        ),
        _counter(
            "tenure_models_failovers_total",
            _MODELS,
            "calls that an endpoint refused and that moved to another one",
            endpoint="the endpoint that refused",
            error_class="the class of the failure",
        ),
        _gauge(
            "tenure_models_endpoint_circuit_open",
            _MODELS,
            "1: the endpoint failed too often with one of its models, whose calls go to others",
            endpoint=_ENDPOINT,
        ),
        _gauge(
            "tenure_models_rate_limit_waiting",
            _MODELS,
            "calls that wait for the rate limit of the endpoint's key",
            endpoint=_ENDPOINT,
        ),
        _seconds(
            "tenure_models_rate_limit_wait_seconds",
            _MODELS,
            "how long calls waited that had to wait",
            endpoint=_ENDPOINT,
        ),
        _counter(
            "tenure_models_input_tokens_total",
            _MODELS,
            "input tokens that the provider stated; cached / (cached + uncached) is the share read from its cache",
            endpoint=_ENDPOINT,
            kind="cached: read from the provider's cache; uncached: all other input",
        ),
        _counter("tenure_models_calls_lost_total", _MODELS, "calls of model runners that this one found dead"),
        _counter(
            "tenure_models_calls_settled_total",
            _MODELS,
            "calls that were stopped, because the ledger had settled them: their tasks had ended without a worker",
        ),
        _counter(
            "tenure_models_relayed_total", _MODELS, "requests relayed to another model runner", method="the method"
        ),
        _counter(
            "tenure_models_usage_reports_total",
            _MODELS,
            "reports of usage of calls whose end may not be in the ledger",
            result="what came of it",
        ),
        _counter(
            "tenure_worker_usage_reports_total",
            _WORKER,
            "reports of usage that no commit has",
            result="what came of it",
        ),
        _counter("tenure_usage_reports_total", _CHECKPOINT, "the same reports, as they arrive"),
    ),
    "Tools": (
        _counter(
            "tenure_tool_calls_total",
            _TOOLS,
            "calls that ended with an outcome",
            tool="the tool; beyond 200 tools of a process `(others)`",
            source="built-in, own, or the name of the MCP server or provider",
            effect="PURE, IDEMPOTENT, KEYED, UNSAFE",
            status="the status of the outcome",
        ),
        _seconds("tenure_tool_call_seconds", _TOOLS, "how long they ran", tool="the tool"),
        _gauge("tenure_tool_calls_held", _TOOLS, "calls that run or wait to run on this replica"),
        _gauge("tenure_tool_calls_held_max", _TOOLS, "the most that this replica takes"),
        _counter("tenure_calls_in_doubt_total", _TOOLS, "calls that were put in doubt"),
        _counter("tenure_calls_settled_total", _TOOLS, "calls whose end was unknown and was to be learned"),
        _counter("tenure_runner_lapses_total", _TOOLS, "how often this runner could not renew and stopped its calls"),
        _gauge("tenure_tool_source_linked", _TOOLS, "1: the source is connected", **_SOURCE),
        _gauge("tenure_tool_source_tools", _TOOLS, "the number of its tools", **_SOURCE),
        _gauge("tenure_tool_source_held", _TOOLS, "its tools that are held until an operator accepts them", **_SOURCE),
        _gauge("tenure_tool_source_processes", _TOOLS, "running processes of an MCP server", **_SOURCE),
        _counter("tenure_sandbox_starts_total", _TOOLS, "started sandboxes", start="warm, cold"),
        _counter("tenure_sandbox_results_total", _TOOLS, "programs that ended", result="OK, or why they were stopped"),
        _seconds("tenure_sandbox_wall_seconds", _TOOLS, "how long programs ran"),
        _seconds("tenure_sandbox_cpu_seconds", _TOOLS, "their processor time"),
        _gauge("tenure_sandbox_peak_memory_bytes", _TOOLS, "the highest memory of a program since the start"),
    ),
    "Streams and webhooks": (
        _seconds(
            "tenure_stream_lag_seconds",
            _GATEWAY,
            "from the commit of an entry to its arrival at the gateway of a watcher. Compares two clocks",
        ),
        _gauge("tenure_watchers", _CHECKPOINT, "open watches"),
        _counter("tenure_watch_reads_total", _CHECKPOINT, "reads of the ledger for watchers of tasks"),
        _counter("tenure_change_reads_total", _CHECKPOINT, "reads of the ledger for watchers of changes"),
        _gauge("tenure_webhook_deliveries", _CHECKPOINT, "deliveries of all webhooks", state="pending, dead"),
        _gauge("tenure_webhook_overdue_seconds", _CHECKPOINT, "how long the longest overdue delivery has been due"),
        _gauge("tenure_webhooks_paused", _CHECKPOINT, "paused webhooks"),
        _counter("tenure_webhook_attempts_total", _CHECKPOINT, "attempts to deliver", outcome="received, failed"),
        _counter(
            "tenure_webhook_gaps_total",
            _CHECKPOINT,
            "changes that were pruned before a webhook read them",
            reason="why",
        ),
        _counter("tenure_answer_links_total", _CHECKPOINT, "links that answer waits", outcome="issued, answered"),
        _counter(
            "tenure_answer_pages_total", _GATEWAY, "pages of links that answer nothing", outcome="the code of the error"
        ),
        _counter("tenure_webhook_sender_lease_failures_total", _CHECKPOINT, "sender leases that failed"),
    ),
    "Tenants": (
        _counter("tenure_tenant_tokens_total", _CHECKPOINT, "billed tokens", **_TENANT),
        _counter("tenure_tenant_cost_usd_total", _CHECKPOINT, "billed money in dollars", **_TENANT),
        _counter("tenure_tenant_tasks_ended_total", _CHECKPOINT, "ended tasks", **_TENANT, state="the last state"),
        _counter("tenure_tenant_warnings_total", _CHECKPOINT, "soft cap warnings", **_TENANT, quota="the quota"),
        _gauge(
            "tenure_tenant_quota_used_ratio",
            _CHECKPOINT,
            "how much of a quota the tenant has used; only if it reached the soft cap, 80 %, in the current window",
            **_TENANT,
            quota="RUNNING_TASKS, SUBMITS_PER_MINUTE, TOKENS_PER_HOUR, MONEY_PER_DAY, EMAILS_PER_HOUR",
        ),
        _counter(
            "tenure_tenant_quota_total", _CHECKPOINT, "requests that met a quota", quota="the quota", outcome="waited"
        ),
        _counter(
            "tenure_denied_calls_total",
            ALL,
            "refused calls: no credentials, no permission, a limit",
            method="the method",
            reason="the reason code",
        ),
    ),
    "The ledger's work": (
        _seconds(
            "tenure_batch_item_seconds",
            STORES + _COORDINATOR,
            "from the arrival of an item to its durable result: for `commits`, the latency of a commit in the service",
            batcher="commits, opens, accepts, starts, finishes, claim deletions, …",
        ),
        _seconds(
            "tenure_batch_seconds", STORES + _COORDINATOR, "the duration of one write of a batch", batcher="as above"
        ),
        _counter("tenure_batches_total", STORES + _COORDINATOR, "written batches", batcher="as above"),
        _counter("tenure_batched_items_total", STORES + _COORDINATOR, "items in them", batcher="as above"),
        _counter("tenure_batches_repeated_total", STORES + _COORDINATOR, "batches written again", batcher="as above"),
        _gauge(
            "tenure_batch_items_waiting", STORES + _COORDINATOR, "items that wait for their batch", batcher="as above"
        ),
        _seconds(
            "tenure_sweep_lag_seconds",
            _CHECKPOINT,
            "by how much a sweep was late: from the due time to the change",
            sweep="retries, deadlines, queued, waits, escalations",
        ),
        _counter(
            "tenure_swept_tasks_total",
            _CHECKPOINT,
            "tasks that sweeps changed",
            sweep="as above, starts, signals, lines",
        ),
        _counter(
            "tenure_schedule_runs_total", _CHECKPOINT, "handled due times of schedules", outcome="what came of them"
        ),
        _gauge("tenure_retention_lag_seconds", _CHECKPOINT, "how late pruning is", stage="tasks, entries, tools"),
        _counter("tenure_pruned_tasks_total", _CHECKPOINT, "pruned tasks", by="retention, operator"),
        _counter("tenure_pruned_entries_total", _CHECKPOINT, "deleted entries of pruned tasks"),
        _counter("tenure_pruned_changes_total", _CHECKPOINT, "pruned changes"),
        _counter("tenure_forgotten_tasks_total", _TOOLS, "pruned tasks that the tool service forgot"),
        _counter("tenure_removed_workspaces_total", _TOOLS, "removed workspaces"),
        _counter("tenure_unremoved_workspaces_total", _TOOLS, "workspaces that could not be removed"),
        _counter(
            "tenure_result_schemas_checked_total",
            _GATEWAY + _COORDINATOR + _CHECKPOINT + _TOOLS,
            "schemas of results that were checked",
        ),
    ),
    "Traces": (
        _counter("tenure_trace_spans_exported_total", _CHECKPOINT, "spans that a collector has taken"),
        _counter("tenure_trace_export_failures_total", _CHECKPOINT, "failed exports; they are repeated"),
        _counter("tenure_trace_spans_left_out_total", _CHECKPOINT, "spans that a collector refused each time"),
        _gauge(
            "tenure_trace_export_lag_seconds",
            _CHECKPOINT,
            "how long ago everything was exported, at the replica that exports; 0 at the others",
        ),
        _counter("tenure_trace_gaps_total", _CHECKPOINT, "changes that were pruned before they were exported"),
        _counter("tenure_trace_tasks_pruned_total", _CHECKPOINT, "tasks that were pruned before their traces ended"),
    ),
    "Stores": (
        _gauge(
            "tenure_postgres_pool_connections",
            STORES,
            "connections of a pool",
            pool="the pool",
            state="used, idle, max (the most it may have)",
        ),
        _gauge("tenure_postgres_pool_waiting", STORES, "requests that wait for a connection", pool="the pool"),
        _counter(
            "tenure_postgres_errors_total",
            STORES,
            "failed uses of Postgres",
            reason="the reason code; REFUSED: a value that the database does not store; BUG: a fault of the statement",
        ),
        _gauge("tenure_standby_usable", _CHECKPOINT, "1: reads may use the standby, if one is configured"),
        _gauge("tenure_standby_lag_seconds", _CHECKPOINT, "how old the data of the standby is"),
        _counter(
            "tenure_standby_reads_total",
            _CHECKPOINT,
            "reads at the standby",
            kind="list, entries",
            source="standby, or primary after a failure",
        ),
        _seconds("tenure_etcd_call_seconds", _COORDINATOR, "answered calls to etcd", kind="read, write"),
        _counter(
            "tenure_etcd_failures_total",
            _COORDINATOR,
            "failed calls to etcd",
            kind="read, write",
            meaning="the class of the failure",
        ),
        _gauge("tenure_etcd_out_of_space", _COORDINATOR, "1: etcd has the alarm NOSPACE"),
    ),
    "Processes": (
        _gauge("tenure_build_info", ALL, "1", service="the service", version="the version of Tenure"),
        _seconds(
            "tenure_event_loop_delay_seconds", ALL, "by how much a timer of the event loop was late, once a second"
        ),
        _counter("tenure_log_lines_total", ALL, "logged lines", level="WARNING, ERROR, CRITICAL"),
        _counter("tenure_duty_failures_total", ALL, "duties that failed and were restarted", duty="the duty"),
        _counter("tenure_duty_stalls_total", ALL, "duties without progress for too long", duty="the duty"),
        _counter("tenure_failpoint_hits_total", ALL, "hits of armed failpoints, in tests", failpoint="the failpoint"),
        _counter("grpc_server_started_total", ALL, "calls that began", **_RPC),
        _counter("grpc_server_handled_total", ALL, "calls that ended", **_RPC, grpc_code="the status"),
        _counter("grpc_server_msg_received_total", ALL, "received messages", **_RPC),
        _counter("grpc_server_msg_sent_total", ALL, "sent messages", **_RPC),
        _seconds("grpc_server_handling_seconds", ALL, "how long calls took, streams included", **_RPC),
    ),
}

CATALOGUE: Final[dict[str, Described]] = {
    described.name: described for section in SECTIONS.values() for described in section
}

BEGIN: Final = "<!-- the tables: written by python -m tenure.runtime.observability.metric_catalogue -->"
END: Final = "<!-- the end of the tables -->"


def tables() -> str:
    """Returns the tables of docs/metrics.md."""
    parts = []
    for title, section in SECTIONS.items():
        rows = [
            f"| `{each.name}` | {each.kind} | {_services(each)} | {each.help} | {_labels(each)} |" for each in section
        ]
        head = "| metric | kind | reported by | what it counts or measures | labels |\n|---|---|---|---|---|"
        parts.append("\n".join([f"### {title}", "", head, *rows]))
    return "\n\n".join(parts)


def _services(described: Described) -> str:
    return "all" if described.services == ALL else ", ".join(described.services)


def _labels(described: Described) -> str:
    return "; ".join(f"`{name}`: {text}" for name, text in described.labels.items())


def page(text: str) -> str:
    """Returns docs/metrics.md with the tables as they are now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/metrics.md")
    path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
