"""The pages of answer links, for people without an account: what would be done, the form that answers, the result.

Who has the URL of a link may answer its wait, so no page leaves a trace of it: none may be cached, framed or indexed,
none loads or runs anything, and none sends a referrer. Opening a page (GET) only reads: mail scanners follow links.
Only the form of the page (POST) answers, with the digest of what it showed.
"""

from __future__ import annotations

import base64
import json
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from hashlib import sha256
from html import escape
from time import monotonic
from typing import Final, NamedTuple, TypeVar

from services.gateway.client_addresses import limited_place
from services.gateway.client_fields import new_id
from services.gateway.peers import Peers, with_retries
from tenure.domain.approvals import LinkToken, label_of, read_link_token
from tenure.domain.budget import money_text
from tenure.domain.call_limits import Rate
from tenure.domain.errors import (
    InvalidRequest,
    LimitReached,
    NotFound,
    PermissionDenied,
    TenureError,
    TryLater,
    Unavailable,
)
from tenure.domain.texts import visible_text
from tenure.domain.waits import WAIT_RULES
from tenure.runtime.observability import metrics
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import approval_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.wire.common import WAIT_KINDS, moment

_log: Final = logging.getLogger(__name__)
REQUESTS_PER_SECOND: Final = 5.0
"""Of one link, and of unknown tokens from one address; an unused rate adds up for 2 s."""
GUESSES_OF_ALL: Final = 200.0
"""A second: unknown tokens of all addresses within their rates, and as many beyond these rates."""
MAX_REMEMBERED: Final = 10_000
MAX_FORM_BYTES: Final = 256 * 1024
"""A reply of 64 KiB, percent-encoded, and the other fields."""
_RETRY_SECONDS: Final = 1.0

STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;"
    "background:#fff}h1{font-size:1.4rem}dl{display:grid;grid-template-columns:9rem 1fr;gap:.3rem 1rem}"
    "dt{color:#59636e}dd{margin:0;overflow-wrap:anywhere}"
    "pre{background:#f3f4f6;padding:.8rem;white-space:pre-wrap;overflow-wrap:anywhere}"
    "fieldset{border:1px solid #d1d9e0;margin:1rem 0}label{display:block;padding:.2rem 0}textarea{width:100%;"
    "box-sizing:border-box;font:inherit}button{font:inherit;padding:.5rem 1.4rem}.small{color:#59636e;font-size:.85rem}"
)
_STYLE_HASH: Final = base64.b64encode(sha256(STYLE.encode()).digest()).decode()
HEADERS: Final[Mapping[str, str]] = {
    "content-type": "text/html; charset=utf-8",
    "cache-control": "no-store",
    "x-robots-tag": "noindex, nofollow",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; frame-ancestors 'none'; "
        "base-uri 'none'"
    ),
}
"""The headers of each page, besides those of all answers (`SafeHeaders`): no referrer, no frame, no guessed type.

The one style is a constant of this file; everything from outside is escaped.
"""


class AnswerPage(NamedTuple):
    """One answer to a browser. `code`: the reason of an error, for programs; "" for a page without one."""

    status: int
    body: str
    code: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        return dict(HEADERS) | ({"tenure-error": self.code} if self.code else {})


class AnswerPages:
    """Shows links and takes their answers. `address`: where the request comes from, as the audit log has it."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._limits = _RequestLimits()

    async def show(self, token: str, address: str, preselected: str = "") -> AnswerPage:
        """Returns the page of a link. Changes nothing."""
        try:
            link = _read(token)
            self._limits.take(link, address)
            request = pb.GetAnswerLinkRequest(link_id=link.link_id, digest=link.digest)
            view = await with_retries(lambda: self._peers.approvals.GetAnswerLink(request))
            self._limits.know(link)
        except (TenureError, PeerFailed) as error:
            return _refused(error)
        return AnswerPage(200, answer_form(view, preselected))

    async def answer(self, token: str, address: str, form: Mapping[str, str]) -> AnswerPage:
        """Answers the wait of a link. `form`: the fields of the page."""
        try:
            link = _read(token)
            self._limits.take(link, address)
            request = pb.AnswerByLinkRequest(
                link_id=link.link_id,
                digest=link.digest,
                comment=form.get("comment", "").replace("\r\n", "\n"),
                shown_digest=form.get("shown", ""),
                client_address=address[:100],
                request_id=new_id(),
            )
            decision, reply = form.get("decision", ""), form.get("reply", "").replace("\r\n", "\n")
            calls = {name.removeprefix(_DECISION_ON): form[name] for name in form if name.startswith(_DECISION_ON)}
            if sum(map(bool, (decision, reply, calls))) != 1:
                raise InvalidRequest(violations=[("answer", "choose one of the answers, or write one")])
            for call_id, chosen in calls.items():
                request.calls.add(call_id=call_id, decision=chosen)
            if decision:
                request.decision = decision
            elif reply:
                request.reply = reply
            answered = await with_retries(lambda: self._peers.approvals.AnswerByLink(request))
        except (TenureError, PeerFailed) as error:
            return _refused(error)
        return AnswerPage(200, _thanks(answered.task, label_of(decision) if decision else ""))


class _RequestLimits:
    """The rates of requests. Tokens cannot be guessed, but each guess costs a query of the ledger.

    So a link that the ledger has shown has a rate of its own, which no guess uses up. All other tokens have the rate of
    their address, and beyond it what is left of the rate of all: many people may have the address of one proxy.
    """

    def __init__(self) -> None:
        self._within, self._beyond = Rate(GUESSES_OF_ALL), Rate(GUESSES_OF_ALL)
        self._addresses: OrderedDict[str, Rate] = OrderedDict()
        self._links: OrderedDict[LinkToken, Rate] = OrderedDict()

    def take(self, link: LinkToken, address: str) -> None:
        """Counts a request. Raises LimitReached."""
        if link in self._links:
            self._links.move_to_end(link)
            rates: Iterable[Rate] = (self._links[link],)
        else:
            own = _rate_of(self._addresses, limited_place(address))
            rates = (self._beyond,) if own.wait_seconds(monotonic()) else (own, self._within)
        if any(rate.wait_seconds(monotonic()) for rate in rates):
            raise LimitReached("too many requests: wait a moment", retry_after_seconds=_RETRY_SECONDS)
        for rate in rates:
            rate.spend(1)

    def know(self, link: LinkToken) -> None:
        """Remembers a link that the ledger has."""
        _rate_of(self._links, link)


K = TypeVar("K")


def _rate_of(rates: OrderedDict[K, Rate], key: K) -> Rate:
    """Returns the rate of an address or a link, and forgets the one that was used longest ago beyond a number."""
    rate = rates.setdefault(key, Rate(REQUESTS_PER_SECOND))
    rates.move_to_end(key)
    if len(rates) > MAX_REMEMBERED:
        rates.popitem(last=False)
    return rate


def _read(token: str) -> LinkToken:
    link = read_link_token(token)
    if link is None:
        raise NotFound("there is no such link: it is wrong, or was removed", reason="ANSWER_LINK_NOT_FOUND")
    return link


# Pages.

_STATUSES: Final[Mapping[str, int]] = {
    "ANSWER_LINK_EXPIRED": 410,
    "WAIT_OVER": 410,
    "WAIT_CHANGED": 409,
}
_TITLES: Final[Mapping[str, str]] = {
    "ANSWER_LINK_NOT_FOUND": "This link is not valid",
    "ANSWER_LINK_EXPIRED": "This link has expired",
    "WAIT_OVER": "This has been answered, or is not needed any more",
    "WAIT_CHANGED": "The question has changed",
    "NOT_AN_APPROVER": "You may not answer this any more",
    "LIMIT_REACHED": "Too many requests",
}


_UNCHANGED: Final = "Nothing was changed."


def _refused(error: TenureError | PeerFailed) -> AnswerPage:
    """Returns the page of an error, with its reason in a header. A failure behind the gateway shows no detail."""
    if isinstance(error, PeerFailed):
        _log.error("the ledger failed for an answer page", extra={"error": str(error)})
        error = Unavailable("the ledger failed")
    metrics.count("tenure_answer_pages_total", outcome=error.reason)
    if isinstance(error, NotFound):
        status = 404
    elif isinstance(error, PermissionDenied):
        status = 403
    elif isinstance(error, LimitReached):
        status = 429
    elif isinstance(error, TryLater):
        status = 503
    else:
        status = _STATUSES.get(error.reason, 400)
    title = _TITLES.get(error.reason, "This did not work")
    text = "It is not known whether your answer arrived: open the link again." if status == 503 else _UNCHANGED
    detail = f"{error.message}." if status in {400, 409, 410} else ""
    body = f"<h1>{escape(title)}</h1><p>{escape(detail)}</p><p>{escape(text)}</p>"
    return AnswerPage(status, _document(title, f'{body}<p class="small">{escape(error.reason)}</p>'), error.reason)


def answer_form(view: pb.GetAnswerLinkResponse, preselected: str) -> str:
    task, wait = view.task, view.task.wait
    kind = WAIT_KINDS.find(wait.kind)
    title = WAIT_RULES[kind].headline if kind else "An answer is needed"
    facts = [
        ("Task", task.spec.goal),
        ("Task id", f"{task.task_id} ({view.tenant})"),
        ("Question", wait.question),
        ("Context", wait.context),
        ("Reference", wait.reference),
        ("Tool", wait.tool),
        ("Digest of the call", wait.call_digest),
        ("Cost so far", _cost(task)),
        ("It asks for", _request_text(wait)),
        ("Deadline", f"{moment(wait.deadline_time):%Y-%m-%d %H:%M} UTC"),
        ("May answer", ", ".join(wait.approvers)),
        ("You are", view.addressee),
    ]
    shown = "".join(f"<dt>{escape(name)}</dt><dd>{_lines(text)}</dd>" for name, text in facts if text)
    arguments = f"<h2>Arguments</h2><pre>{shown_arguments(wait.arguments_json)}</pre>" if wait.arguments_json else ""
    choices = _choices(view.decisions, preselected)
    if wait.calls:
        facts = [fact for fact in facts if fact[0] not in {"Tool", "Digest of the call"}]
        shown = "".join(f"<dt>{escape(name)}</dt><dd>{_lines(text)}</dd>" for name, text in facts if text)
        arguments, choices = "", "".join(_call_choices(call, view.decisions, preselected) for call in wait.calls)
    form = (
        f'<form method="post" autocomplete="off"><input type="hidden" name="shown" value="{escape(view.shown_digest)}">'
        f"<fieldset><legend>Your answer</legend>{choices}"
        '<label>Comment<textarea name="comment" rows="3" maxlength="4000"></textarea></label></fieldset>'
        '<button type="submit">Send the answer</button></form>'
        f'<p class="small">The link works once, until {moment(view.expire_time):%Y-%m-%d %H:%M} UTC. Your answer is '
        f"recorded with {escape(view.addressee)} and your network address.</p>"
    )
    return _document(title, f"<h1>{escape(title)}</h1><dl>{shown}</dl>{arguments}{form}")


_DECISION_ON: Final = "decision_on_"


def _call_choices(call: task_pb2.WaitingCall, decisions: Iterable[str], preselected: str) -> str:
    return (
        f"<h3>{escape(call.tool)} ({escape(call.call_id)})</h3><pre>{shown_arguments(call.arguments_json)}</pre>"
        f'<p class="small">{escape(call.call_digest)}</p>{_choices(decisions, preselected, field_of(call.call_id))}'
    )


def field_of(call_id: str) -> str:
    """Returns the name of the field with the decision on one of several calls."""
    return f"{_DECISION_ON}{call_id}"


def _choices(decisions: Iterable[str], preselected: str, field: str = "decision") -> str:
    names = list(decisions)
    if not names:
        return '<label>Answer<textarea name="reply" rows="6" required></textarea></label>'
    return "".join(
        f'<label><input type="radio" name="{field}" value="{escape(name)}"{" required" if field == "decision" else ""}'
        f"{' checked' if name == preselected else ''}> {escape(label_of(name))}</label>"
        for name in names
    )


def _cost(task: task_pb2.Task) -> str:
    usage = task.usage
    tokens = usage.input_tokens + usage.output_tokens
    tokens += usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    return f"{money_text(task.used_nano_usd)}, {tokens:,} tokens"


def _request_text(wait: task_pb2.Wait) -> str:
    request = wait.budget_request
    wanted = [f"{request.suggested_tokens:,} tokens more"] if request.suggested_tokens else []
    wanted += [f"{money_text(request.suggested_nano_usd)} more"] if request.suggested_nano_usd else []
    return " and ".join(wanted)


def shown_arguments(arguments_json: str) -> str:
    """Returns the arguments, indented unless that would show less than they say. Nothing is cut."""
    try:
        parsed = json.loads(arguments_json, object_pairs_hook=_distinct, parse_int=_exact_int, parse_float=_exact_float)
        shown = json.dumps(parsed, ensure_ascii=False, indent=2)
    except (ValueError, RecursionError):
        shown = arguments_json
    return escape(visible_text(shown))


def _exact_int(text: str) -> int:
    if str(number := int(text)) != text:
        raise ValueError(f"{text} would be shown as another text")
    return number


def _exact_float(text: str) -> float:
    if repr(number := float(text)) != text:
        raise ValueError(f"{text} would be shown as another text")
    return number


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Returns an object. Raises ValueError for a name that stands twice: readers disagree which one counts."""
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name stands twice")
    return values


def _thanks(task: task_pb2.Task, label: str) -> str:
    said = f"Recorded: {label}." if label else "Your answer is recorded."
    body = f"<h1>Thank you</h1><p>{escape(said)} The task {escape(task.task_id)} goes on.</p>"
    return _document("Thank you", body)


def _lines(text: str) -> str:
    """Returns the text escaped, with its line breaks."""
    return escape(visible_text(text)).replace("\n", "<br>")


def _document(title: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)} · Tenure</title><style>{STYLE}</style></head><body>{body}</body></html>"
    )
