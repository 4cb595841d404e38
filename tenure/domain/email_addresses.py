"""E-mail addresses that are accepted: in headers, in SMTP commands, and as the names of approvers."""

from __future__ import annotations

import re
from typing import Final

MAX_EMAIL_ADDRESSES: Final = 20
MAX_ADDRESS_CHARACTERS: Final = 254
MAX_LOCAL_CHARACTERS: Final = 64
EMAIL_ADDRESS_RULE: Final = (
    f"must be local@domain in ASCII, at most {MAX_ADDRESS_CHARACTERS} characters, without quotes, comments and names"
)

_ATOM: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL: Final = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ADDRESS: Final = re.compile(rf"(?P<local>{_ATOM}(\.{_ATOM})*)@(?P<domain>{_LABEL}(\.{_LABEL})*)")


def is_email_address(text: str) -> bool:
    """Whether the text is an address that can stand in a header and in an SMTP command as it is.

    Quoted local parts, comments, display names, address literals and characters beyond ASCII are refused: mail servers
    read them in different ways.
    """
    if len(text) > MAX_ADDRESS_CHARACTERS or not text.isascii():
        return False
    match = _ADDRESS.fullmatch(text)
    return match is not None and len(match["local"]) <= MAX_LOCAL_CHARACTERS


def domain_of(address: str) -> str:
    """Returns the domain of a valid address, in lower case."""
    return address.rpartition("@")[2].lower()
