"""Decides calls by a tenant's rules on arguments: allow, ask a person, or deny; and counts calls against bounds.

A rule applies to a call that its `tool` and `agent` fit and for which its expression `when` is true. The process that
decides has the expressions evaluated first, and reads what the bounds have counted under their locks. These functions
do the rest.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal, Inexact, InvalidOperation
from enum import StrEnum
from fnmatch import fnmatchcase
from math import floor
from typing import Any, Final, Generic, NamedTuple, TypeVar

from tenure.domain.tool_arguments import MAX_JSON_DEPTH, depth_of, exact_json
from tenure.domain.tool_schemas import OWN_FORM, ShownSchema
from tenure.domain.tools import Outcome, OutcomeStatus

MAX_RULES: Final = 100
"""Of a tenant."""
MAX_ARGUMENT_BYTES: Final = 64 * 1024
"""A call with larger arguments is denied where a rule fits it: an expression must be decided in milliseconds."""
MIN_WINDOW_SECONDS: Final = 60.0
MAX_WINDOW_SECONDS: Final = 366 * 86_400.0

RULE_DENIED: Final = "RULE_DENIED"
RULE_FAILED: Final = "RULE_FAILED"
NEEDS_APPROVAL: Final = "NEEDS_APPROVAL"
"""Details of the status NOT_ALLOWED: a rule denies the call; it cannot be decided; it asks for a person's approval."""

_DIGITS: Final = 30
_PLACES: Final = 12
_EXACT: Final = Context(prec=200, traps=[Inexact])
"""Adds amounts: Python's usual context would round a sum to 28 digits."""
_PATH: Final = re.compile(r"args(\.[a-zA-Z_][a-zA-Z0-9_-]*)+|labels\.[^\s.]+|task|agent|tool")
_TOOL: Final = re.compile(r"[a-zA-Z0-9_*-]{1,128}")
_READS_USED: Final = re.compile(r"\bused\b")
_UNREADABLE: Final = re.compile("[\0\ud800-\udfff]")
_INT64: Final = 2**63


class RuleVerdict(StrEnum):
    """What a rule decides."""

    ALLOW = "ALLOW"
    ASK = "ASK"
    DENY = "DENY"


@dataclass(frozen=True, slots=True)
class RuleBounds:
    """How many calls of a rule may run. `count` 0: any number. `limit`: of the sum of the amounts at the path `sum_of`.

    `per`: the path of the value for each of which the calls are counted apart. `window_seconds` 0: counted for ever.
    """

    count: int = 0
    sum_of: str = ""
    limit: str = ""
    per: str = ""
    window_seconds: float = 0.0
    beyond: RuleVerdict = RuleVerdict.DENY


@dataclass(frozen=True, slots=True)
class ToolRule:
    """A rule. `tool`: a name in which each * stands for any characters. `agent`, `when` "": all fit."""

    name: str
    tool: str
    verdict: RuleVerdict
    agent: str = ""
    when: str = ""
    reason: str = ""
    bounds: RuleBounds | None = None

    def fits(self, tool: str, agent: str) -> bool:
        """Whether the rule is about calls of this tool for this agent."""
        return self.agent in {"", agent} and fnmatchcase(tool, self.tool)

    @property
    def reads_used(self) -> bool:
        """Whether the expression reads what the rule has counted. A text with that word counts as a read."""
        return self.bounds is not None and _READS_USED.search(self.when) is not None


def problems_of_rule(rule: ToolRule) -> Iterable[tuple[str, str]]:
    """Yields each wrong field and its problem. The expression is not compiled."""
    if not _TOOL.fullmatch(rule.tool):
        yield "tool", "must be the name of a tool, of letters, digits, _ and -, in which * stands for any characters"
    bounds = rule.bounds
    if bounds is None:
        if _READS_USED.search(rule.when):
            yield "when", "reads used, but the rule has no bounds that count"
        return
    if rule.verdict is RuleVerdict.DENY:
        yield "bounds", "must not be set for DENY: a denied call is never counted"
    yield from _problems_of_bounds(bounds)


def _problems_of_bounds(bounds: RuleBounds) -> Iterable[tuple[str, str]]:
    if bounds.beyond is RuleVerdict.ALLOW:
        yield "bounds.beyond", "must be ASK or DENY"
    for name, path in (("sum_of", bounds.sum_of), ("per", bounds.per)):
        if path and not _PATH.fullmatch(path):
            yield f"bounds.{name}", "must be a path such as args.amount, labels.team, task, agent or tool"
    if bounds.limit and not bounds.sum_of:
        yield "bounds.limit", "needs sum_of, the path of the amounts"
    try:
        amount_of(bounds.limit or 0)
    except Undecided as why:
        yield "bounds.limit", f"must be an amount: {why}"
    window = bounds.window_seconds
    if window and (not MIN_WINDOW_SECONDS <= window <= MAX_WINDOW_SECONDS or window % 1):
        yield "bounds.window", "must be 1 minute to 366 days, in whole seconds"


# One call.


class Undecided(Exception):  # noqa: N818  becomes an outcome for the model
    """A rule cannot be decided for a call. The message is a clause."""


@dataclass(frozen=True, slots=True)
class RuledCall:
    """What rules see of a call. `args`: the arguments that the tool receives, with exact decimals."""

    tenant: str
    task: str
    tool: str
    args: Mapping[str, Any]
    agent: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def at(self, path: str) -> Any:
        """Returns the value at a path. Raises Undecided if there is none."""
        value: Any = {"args": self.args, "labels": self.labels, "task": self.task, "agent": self.agent}
        value["tool"] = self.tool
        for name in path.split("."):
            if not isinstance(value, Mapping) or name not in value:
                raise Undecided(f"the call has no {path}")
            value = value[name]
        return value

    def values(self) -> dict[str, Any]:
        """Returns the variables of expressions but `used`. Raises Undecided for a value that they would misread."""
        return {
            "args": _for_expressions(self.args),
            "labels": _for_expressions(self.labels),
            "task": _for_expressions(self.task),
            "agent": _for_expressions(self.agent),
            "tenant": _for_expressions(self.tenant),
            "tool": _for_expressions(self.tool),
        }


def read_arguments(arguments_json: bytes, form: ShownSchema = OWN_FORM) -> Mapping[str, Any]:
    """Returns the arguments as rules read them: the tool's own. `form`: in which the model was shown the tool.

    Raises Undecided: for two values of a name, too, because the tool may read the other one.
    """
    if len(arguments_json) > MAX_ARGUMENT_BYTES:
        raise Undecided(f"its arguments have more than {MAX_ARGUMENT_BYTES:,} bytes, which no rule reads")
    try:
        value = exact_json(arguments_json.decode())
    except (ValueError, InvalidOperation) as error:
        raise Undecided(f"its arguments are not clear: {error}") from error
    except RecursionError as error:
        raise Undecided("its arguments nest too deeply") from error
    if not isinstance(value, dict):
        raise Undecided("its arguments are not an object")
    if depth_of(value) > MAX_JSON_DEPTH:
        raise Undecided("its arguments nest too deeply")
    return form.own_arguments(value)


def _for_expressions(value: Any) -> Any:
    """Returns JSON for expressions, whose numbers are int64 and double. `read_arguments` has bounded the depth.

    Their library reads a text only up to its first NUL, so the rule would read another text than the tool.
    """
    if isinstance(value, str) and _UNREADABLE.search(value):
        raise Undecided("one of its texts has a NUL, or half of a surrogate pair, which expressions cannot read")
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        raise Undecided("one of its whole numbers has more than 64 bits, which expressions cannot read")
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, Mapping):
        return {_for_expressions(name): _for_expressions(item) for name, item in value.items()}
    return [_for_expressions(item) for item in value] if isinstance(value, list) else value


def amount_of(value: Any) -> Decimal:
    """Returns an amount, exactly: a number from 0 on, or a text with one. Raises Undecided."""
    if isinstance(value, bool) or not isinstance(value, int | str | Decimal):
        raise Undecided("an amount must be a number")
    if isinstance(value, str) and not re.fullmatch(r"[0-9]{1,40}(\.[0-9]{1,40})?", value):
        raise Undecided("an amount must be a number, written as 19.99")
    if isinstance(value, int) and abs(value) >= 10**_DIGITS:
        raise Undecided("an amount is too large")
    amount = Decimal(value)
    if not amount.is_finite() or amount < 0:
        raise Undecided("an amount must be a number from 0 on")
    if amount.adjusted() >= _DIGITS or -int(amount.as_tuple().exponent) > _PLACES:
        raise Undecided(f"an amount may have {_DIGITS} digits, and {_PLACES} decimal places")
    return amount


# Bounds.


class Counter(NamedTuple):
    """Identifies what is counted together. `subject`: a digest of the value at `per`. `begins_at`: Unix time."""

    tenant: str
    rule: str
    subject: bytes
    window_seconds: float
    begins_at: float


@dataclass(frozen=True, slots=True)
class Use:
    """What a counter has counted. `ended`: a person has ended its plan early."""

    calls: int = 0
    total: Decimal = Decimal(0)
    ended: bool = False

    def plus(self, amount: Decimal) -> Use:
        """Returns the use with one call more."""
        return Use(self.calls + 1, _EXACT.add(self.total, amount), self.ended)

    def minus(self, amount: Decimal) -> Use:
        """Returns the use without one call that never ran."""
        return Use(self.calls - 1, _EXACT.subtract(self.total, amount), self.ended)

    def left_of(self, limit: str) -> Decimal:
        """Returns what is left of a limit of the amounts."""
        return max(_EXACT.subtract(amount_of(limit), self.total), Decimal(0))


class BoundShare(NamedTuple):
    """What a call would take of a rule's bounds."""

    counter: Counter
    amount: Decimal


def share_of(rule: ToolRule, call: RuledCall, now: float) -> BoundShare:
    """Returns what the call takes of the rule's bounds. `now`: Unix time. Raises Undecided."""
    assert rule.bounds is not None, "only a rule with bounds counts"
    bounds = rule.bounds
    subject = b""
    if bounds.per:
        text = json.dumps(_as_doubles(call.at(bounds.per)), sort_keys=True)
        subject = hashlib.sha256(text.encode()).digest()
    amount = amount_of(call.at(bounds.sum_of)) if bounds.sum_of else Decimal(0)
    window = bounds.window_seconds
    begins_at = floor(now / window) * window if window else 0.0
    return BoundShare(Counter(call.tenant, rule.name, subject, window, begins_at), amount)


def as_received(value: int | Decimal) -> int | float:
    """Returns a number for a digest, as a tool receives it: 7.0, 7 and 7.00000000000000000001 are one value.

    Raises OverflowError for a whole number beyond those of a double.
    """
    number = float(value)
    return int(number) if number.is_integer() else number


def _as_doubles(value: Any) -> Any:
    """Returns JSON with the numbers that a tool with doubles only receives. `read_arguments` has bounded the depth."""
    if isinstance(value, Mapping):
        return {name: _as_doubles(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_as_doubles(item) for item in value]
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return value
    try:
        return as_received(value)
    except OverflowError as error:
        raise Undecided("one of its numbers is beyond those of a double") from error


# The decision.


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """What one rule that fits says about a call. `problem`: why it cannot be decided. `share`, `use`: of its bounds."""

    rule: ToolRule
    applies: bool
    problem: str = ""
    share: BoundShare | None = None
    use: Use = field(default_factory=Use)


@dataclass(frozen=True, slots=True)
class Ruling:
    """The decision on a call. `outcome` None: it runs, and takes `shares`. `asks`: the outcome is not final.

    `permitted_by`: the plan, as a rule, by which it runs although a person had to be asked.
    """

    outcome: Outcome | None = None
    asks: bool = False
    shares: tuple[BoundShare, ...] = ()
    permitted_by: str = ""

    @property
    def verdict(self) -> RuleVerdict:
        """The decision in one word."""
        if self.outcome is None:
            return RuleVerdict.ALLOW
        return RuleVerdict.ASK if self.asks else RuleVerdict.DENY


def decide_call(
    findings: Sequence[RuleFinding], *, is_approved: bool, ask_reason: str = "", plans: Sequence[RuleFinding] = ()
) -> Ruling:
    """Decides a call by all rules that fit it. `is_approved`: a person has approved this very call.

    `ask_reason`: why a person is asked whatever the rules say; "": the rules decide that. `plans`: those that apply to
    the call, the oldest first.
    """
    for finding in findings:
        if finding.problem:
            text = f"The rule {finding.rule.name} cannot be decided for this call: {finding.problem}."
            return _denied(RULE_FAILED, text)
    applied = [finding for finding in findings if finding.applies]
    asks = [ask_reason] if ask_reason else []
    for finding in applied:
        verdict, why = _by_rule(finding)
        if verdict is RuleVerdict.DENY:
            return _denied(RULE_DENIED, why)
        if verdict is RuleVerdict.ASK:
            asks.append(why)
    closed = [finding.rule for finding in findings if finding.rule.verdict is RuleVerdict.ALLOW]
    if closed and not applied:
        return _denied(RULE_DENIED, _unlisted(closed))
    shares = tuple(finding.share for finding in applied if finding.share is not None)
    if not asks or is_approved:
        return Ruling(shares=shares)
    for plan in plans:
        assert plan.rule.bounds is not None, "a plan counts its calls"
        assert plan.share is not None, "a plan counts its calls"
        exceeded = "was ended early" if plan.use.ended else _exceeded(plan.rule.bounds, plan.share, plan.use)
        if not exceeded:
            return Ruling(shares=(*shares, plan.share), permitted_by=plan.rule.name)
        asks.append(f"The plan of an earlier approval {exceeded}.")
    return Ruling(Outcome(OutcomeStatus.NOT_ALLOWED, " ".join(asks), detail=NEEDS_APPROVAL), asks=True)


def _by_rule(finding: RuleFinding) -> tuple[RuleVerdict, str]:
    rule = finding.rule
    if rule.bounds is not None and finding.share is not None:
        exceeded = _exceeded(rule.bounds, finding.share, finding.use)
        if exceeded:
            return rule.bounds.beyond, _sentence(rule, exceeded)
    clause = "denies this call" if rule.verdict is RuleVerdict.DENY else "asks a person about this call"
    return rule.verdict, _sentence(rule, clause)


def _exceeded(bounds: RuleBounds, share: BoundShare, use: Use) -> str:
    """Returns a clause with the bound that the call would exceed, or ""."""
    where = _scope(bounds)
    if bounds.count and use.calls >= bounds.count:
        return f"allows {bounds.count:,} calls{where}, and {use.calls:,} are counted"
    if bounds.limit and use.plus(share.amount).total > amount_of(bounds.limit):
        left = use.left_of(bounds.limit)
        return f"allows {bounds.limit} in total{where}: {left} is left, and this call needs {share.amount}"
    return ""


def _scope(bounds: RuleBounds) -> str:
    window = bounds.window_seconds
    days, hours = window / 86_400, window / 3600
    span = f"{days:g} days" if days >= 1 else f"{hours:g} hours" if hours >= 1 else f"{window:g} seconds"
    each = f" for each {bounds.per}" if bounds.per else ""
    return f"{each} in {span}" if window else each


def _unlisted(rules: Sequence[ToolRule]) -> str:
    names = ", ".join(rule.name for rule in rules)
    reasons = " ".join(dict.fromkeys(rule.reason for rule in rules if rule.reason))
    return f"No rule allows this call: it is none of those that {names} allows. {reasons}".rstrip()


def _sentence(rule: ToolRule, clause: str) -> str:
    return f"The rule {rule.name} {clause}. {rule.reason}".rstrip()


def _denied(detail: str, text: str) -> Ruling:
    return Ruling(Outcome(OutcomeStatus.NOT_ALLOWED, f"{text} Nothing was done.", detail=detail))


_Call = TypeVar("_Call")


class Counts(Generic[_Call]):
    """What counters have counted, with the calls of one batch, in order."""

    def __init__(self, used: Mapping[Counter, Use]) -> None:
        self._used = dict(used)
        self.taken: list[tuple[_Call, BoundShare]] = []

    def use(self, counter: Counter) -> Use:
        """Returns what the counter has counted so far."""
        return self._used.get(counter, Use())

    def take(self, call: _Call, shares: Iterable[BoundShare]) -> None:
        """Counts a call that is recorded."""
        for share in shares:
            self._used[share.counter] = self.use(share.counter).plus(share.amount)
            self.taken.append((call, share))

    def keep(self, calls: Container[_Call]) -> bool:
        """Gives back what calls other than these have taken. Returns whether there is any."""
        given_back = [share for call, share in self.taken if call not in calls]
        for share in given_back:
            self._used[share.counter] = self.use(share.counter).minus(share.amount)
        self.taken = [each for each in self.taken if each[0] in calls]
        return bool(given_back)
