"""What a response says: to the model, and of what was done."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from services.tools.http_statuses import leaves_open
from services.tools.schemas import shortened
from services.tools.sending import STALE_EPOCH, AnswerLostError, AskedToWaitError, stale
from services.tools.tool import ToolAnswer
from tenure.domain.tools import EffectClass, OutcomeStatus
from tenure.domain.webhooks import retry_after_seconds

REFUSAL_HEADER: Final = "x-fencing-refusal"
"""With the value STALE_EPOCH, beside a 409 or 412."""

_CHARSETS: Final = frozenset(("utf-8", "us-ascii", "iso-8859-1", "iso-8859-15", "windows-1252", "utf-16"))
_TEXT: Final = re.compile(
    r"text/.*|application/(.*\+)?(json|xml|yaml)|application/(x-ndjson|javascript|x-www-form-urlencoded)|"
)
_CHARSET: Final = re.compile(r"charset=\"?([A-Za-z0-9_-]+)")
_REFUSED_AS_STALE: Final = frozenset((409, 412))
_BUSY: Final = frozenset((429, 503))
_ON_THE_WAY: Final = frozenset((408, 499, 502, 503, 504, *range(520, 525)))
"""What proxies say of a server behind them: asked once more, it may answer. 499 and 52x: in the habits of some."""

_OPEN: Final = "its answer leaves open whether that was done"


@dataclass(frozen=True, slots=True)
class Response:
    """As it came: header names in lower case, the body up to a bound."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    truncated: bool


def read_response(who: str, response: Response, effect_class: EffectClass) -> ToolAnswer:
    """The answer, where it is one. Raises AnswerLostError where the response leaves open what was done and that
    matters, and AskedToWaitError where it asks for patience.
    """
    said = _text(response)
    if 200 <= response.status < 300:
        return ToolAnswer(said, truncated=response.truncated)
    if response.status in _REFUSED_AS_STALE and _is_stale(response, said):
        return stale(who)
    answer = ToolAnswer(
        _words(who, response, said), OutcomeStatus.FAILED, f"HTTP_{response.status}", response.truncated
    )
    after_seconds = retry_after_seconds(response.headers.get("retry-after", ""), datetime.now(UTC))
    if not effect_class.may_run_again:
        if leaves_open(response.status):
            told = f"HTTP {response.status}{': ' if said else ''}{shortened(said)}"
            raise AnswerLostError(told, again=False, what=_OPEN)
        return answer
    if response.status in _BUSY and after_seconds is not None:
        raise AskedToWaitError(answer, after_seconds)
    if response.status in _ON_THE_WAY:
        raise AnswerLostError(f"HTTP {response.status}")
    return answer


def _words(who: str, response: Response, said: str) -> str:
    if 300 <= response.status < 400:
        return f"{who} answered HTTP {response.status}: it wants to be asked elsewhere, and redirects are not followed."
    return f"{who} answered HTTP {response.status}{': ' if said else '.'}{said}"


def _is_stale(response: Response, said: str) -> bool:
    if response.headers.get(REFUSAL_HEADER, "").strip() == STALE_EPOCH:
        return True
    try:
        told = json.loads(said)
    except (ValueError, RecursionError):
        return False
    return isinstance(told, dict) and told.get("reason") == STALE_EPOCH


def _text(response: Response) -> str:
    kind, _, parameters = response.headers.get("content-type", "").lower().partition(";")
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if not response.body:
        return ""
    if encoding not in {"", "identity"}:
        return f"[{len(response.body)} bytes, encoded as {encoding[:40]} though that was not asked for]"
    if not _TEXT.fullmatch(kind.strip()):
        return f"[{len(response.body)} bytes of {kind.strip()[:100]}, which is no text]"
    charset = _CHARSET.search(parameters)
    known = charset is not None and charset[1] in _CHARSETS
    return response.body.decode(charset[1] if charset is not None and known else "utf-8", errors="replace")
