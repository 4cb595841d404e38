"""Decides which connections the network policies of rendered manifests allow, as Kubernetes does for our selectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

Document = dict[str, Any]
DNS: Final = {53}


class Pod(NamedTuple):
    """A kind of pod: its component, its labels, and the ports on which it listens."""

    name: str
    labels: dict[str, str]
    ports: frozenset[int]


class Outside(NamedTuple):
    """A rule that leads out of the chart's pods. `peers`: () means every address."""

    port: int | None
    peers: tuple[str, ...]


def _selects(selector: Document, labels: dict[str, str]) -> bool:
    assert not selector.get("matchExpressions"), "not needed so far"
    wanted: dict[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= labels.items()


def _rules(policies: Iterable[Document], pod: Pod, direction: str) -> Iterator[Document]:
    for policy in policies:
        spec = policy["spec"]
        if direction.capitalize() in spec["policyTypes"] and _selects(spec["podSelector"], pod.labels):
            yield from spec.get(direction, ())


def is_isolated(policies: Iterable[Document], pod: Pod, direction: str) -> bool:
    """Whether a policy selects the pod, so that only what a rule allows passes."""
    specs = [policy["spec"] for policy in policies]
    return any(
        direction.capitalize() in spec["policyTypes"] and _selects(spec["podSelector"], pod.labels) for spec in specs
    )


def _admits(rule: Document, side: str, other: Pod, port: int) -> bool:
    ports = {each["port"] for each in rule.get("ports", ())}
    if ports and port not in ports:
        return False
    peers = rule.get(side)
    return not peers or any("podSelector" in peer and _selects(peer["podSelector"], other.labels) for peer in peers)


def connections(policies: list[Document], pods: list[Pod]) -> set[tuple[str, str, int]]:
    """All (caller, callee, port) that both sides allow."""
    return {
        (caller.name, callee.name, port)
        for caller in pods
        for callee in pods
        for port in callee.ports
        if any(_admits(rule, "to", callee, port) for rule in _rules(policies, caller, "egress"))
        and any(_admits(rule, "from", caller, port) for rule in _rules(policies, callee, "ingress"))
    }


def leaving(policies: list[Document], pod: Pod) -> set[Outside]:
    """The rules of a pod that lead elsewhere, besides those to names."""
    found = set()
    for rule in _rules(policies, pod, "egress"):
        ports = {each["port"] for each in rule.get("ports", ())} - DNS
        if rule.get("ports") and not ports:
            continue
        peers = rule.get("to", ())
        if peers and all("podSelector" in peer and "namespaceSelector" not in peer for peer in peers):
            continue
        kinds = tuple(sorted({kind for peer in peers for kind in peer}))
        found |= {Outside(port, kinds) for port in (ports or {None})}
    return found


def entering(policies: list[Document], pod: Pod) -> dict[int, tuple[str, ...]]:
    """The ports that others than the chart's pods reach, with the kinds of peers; () is all peers."""
    found: dict[int, tuple[str, ...]] = {}
    for rule in _rules(policies, pod, "ingress"):
        peers = rule.get("from", ())
        if not peers or any("podSelector" not in peer for peer in peers):
            kinds = tuple(sorted({kind for peer in peers for kind in peer}))
            found |= {each["port"]: kinds for each in rule["ports"]}
    return found
