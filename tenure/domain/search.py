"""The words by which a search finds tasks, as Postgres stores and compares them.

A word is a run of letters and digits, in any case. The lexeme of a word begins with its tenant: so a search reads only
its tenant's part of the index, however frequent a word is elsewhere.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

MAX_CHARACTERS: Final = 16_384
"""The beginning of a goal or a result that a search knows."""
MAX_WORDS: Final = 300
"""Of one goal or result."""
MAX_WORD_CHARACTERS: Final = 40
MAX_SEARCHED_WORDS: Final = 8
_EXACT_CHARACTERS: Final = 2
"""So short a word is found as a whole word only: as a beginning it would match nearly every task."""
_WORD: Final = re.compile(r"[^\W_]+")


def words_of(text: str) -> tuple[str, ...]:
    """Returns the words of a text, each once."""
    folded = unicodedata.normalize("NFKC", text[:MAX_CHARACTERS]).casefold()
    words = dict.fromkeys(word[:MAX_WORD_CHARACTERS] for word in _WORD.findall(folded))
    return tuple(words)[:MAX_WORDS]


def stored_words(tenant: str, *texts: str) -> str:
    """Returns the words of texts as a tsvector; "": they have none."""
    return " ".join(_lexeme(tenant, word) for text in texts for word in words_of(text))


def searched_words(tenant: str, text: str) -> str:
    """Returns the search for tasks with all words of the text, each as the beginning of a word, as a tsquery."""
    return " & ".join(
        _lexeme(tenant, word) + (":*" if len(word) > _EXACT_CHARACTERS else "") for word in words_of(text)
    )


def _lexeme(tenant: str, word: str) -> str:
    return f"'{tenant}/{word}'"
