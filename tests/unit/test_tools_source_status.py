"""What operators read about a source of tools: bounded, without secrets, and the same as the metrics say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from services.tools.source_facts import LONGEST_SENTENCE, MAX_PROBLEMS, SourceStatuses
from tenure.domain.tools import ToolSourceKind
from tenure.runtime.observability.metric_catalogue import CATALOGUE
from tenure.runtime.observability.metrics import REGISTRY
from tenure.v1 import tool_pb2

START = datetime(2026, 11, 22, 3, tzinfo=UTC)


class Clock:
    """A second passes at each look."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> datetime:
        self.looks += 1
        return START + timedelta(seconds=self.looks)


def only(facts: SourceStatuses, tenant: str = "acme") -> tool_pb2.ToolSource:
    (source,) = facts.listed(tenant)
    return source


def gauges(name: str) -> list[float]:
    return [REGISTRY.cell(f"tenure_tool_source_{what}", source=name).value for what in ("linked", "tools")]


def test_a_source_is_away_until_linked_in_list_and_metrics() -> None:
    facts = SourceStatuses(Clock())
    fact = facts.add("one", ToolSourceKind.PROVIDER)
    assert (only(facts).linked, gauges("one")) == (False, [0, 0])
    fact.took(3)
    fact.linked()
    assert (only(facts).linked, only(facts).tools, gauges("one")) == (True, 3, [1, 3])
    fact.lost("the connection ended")
    assert (only(facts).linked, only(facts).tools, gauges("one")) == (False, 3, [0, 3])


def test_a_source_shows_its_last_change_and_last_error() -> None:
    facts = SourceStatuses(Clock())
    fact = facts.add("two", ToolSourceKind.MCP)
    assert not only(facts).HasField("last_error_time")
    fact.lost("first")
    since = only(facts).change_time
    fact.lost("second")
    assert (only(facts).change_time, only(facts).last_error) == (since, "second")
    fact.linked()
    assert only(facts).change_time.seconds > since.seconds
    assert only(facts).last_error == "second"


def test_every_gauge_of_a_source_is_described() -> None:
    SourceStatuses().add("gauged", ToolSourceKind.MCP).took(1)
    set_here = {name for name in REGISTRY.names() if name.startswith("tenure_tool_source_")}
    assert "tenure_tool_source_held" in set_here
    assert set_here <= CATALOGUE.keys()


def test_nothing_is_connected_to_for_built_in_and_http_tools() -> None:
    facts = SourceStatuses()
    facts.add("note", ToolSourceKind.HTTP).took(1)
    assert (only(facts).linked, only(facts).tools) == (True, 1)
    assert gauges("note") == [0, 0]  # no series: never set


def test_a_source_of_other_tenants_is_not_listed() -> None:
    facts = SourceStatuses()
    facts.add("b", ToolSourceKind.PROVIDER, frozenset({"acme"}))
    facts.add("a", ToolSourceKind.PROVIDER)
    facts.add("z", ToolSourceKind.MCP)
    assert [source.name for source in facts.listed("acme")] == ["z", "a", "b"]
    assert [source.name for source in facts.listed("other")] == ["z", "a"]


def test_no_part_of_a_secret_is_shown() -> None:
    facts = SourceStatuses()
    secrets = ["Bearer abcdefgh12345678", "--token=s3cr3t-s3cr3t"]
    fact = facts.add("three", ToolSourceKind.MCP, secrets=secrets)
    fact.lost("x" * (LONGEST_SENTENCE - 8) + " abcdefgh12345678")
    assert "abcd" not in only(facts).last_error
    fact.lost("401 for https://me:hidden@mcp.example.com:8443/k/hidden?key=hidden\nof s3cr3t-s3cr3t")
    assert only(facts).last_error == "401 for https://mcp.example.com:8443 of …"
    fact.took(0, ["'a' is left out: abcdefgh12345678"])
    assert list(only(facts).problems) == ["'a' is left out: …"]


def test_texts_of_a_source_are_bounded() -> None:
    facts = SourceStatuses()
    fact = facts.add("four", ToolSourceKind.MCP)
    fact.lost("y" * 10_000)
    fact.took(1, [f"{number} " + "z" * 10_000 for number in range(MAX_PROBLEMS + 5)])
    source = only(facts)
    assert (len(source.problems), source.problem_count) == (MAX_PROBLEMS, MAX_PROBLEMS + 5)
    assert {len(source.last_error), *map(len, source.problems)} == {LONGEST_SENTENCE}
