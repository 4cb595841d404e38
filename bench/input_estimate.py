"""`python -m bench.input_estimate [--tokenizer FILE]`: checks the worker's bound of a prompt's tokens.

Prints the ratio of the bound to true counts for texts of many kinds. The counts are the model simulator's and, with
--tokenizer, those of a real tokenizer: a file that the package `tokenizers` reads, which must then be installed. A
ratio below 1 means that the bound does not hold.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from devstack.simulator.tokens import count_text
from services.worker.context_window import InputEstimate

SIZE: Final = 20_000
TEXTS: Final = {
    "german": "Die Würde des Menschen ist unantastbar. Sie zu achten und zu schützen ist Verpflichtung. ",
    "russian": "Все люди рождаются свободными и равными в своем достоинстве. ",  # noqa: RUF001  Russian letters
    "chinese": "人人生而自由,在尊严和权利上一律平等。",
    "japanese": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। ",
    "arabic": "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق. ",
    "thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ",
}
Count = Callable[[str], int]


def samples() -> Iterator[tuple[str, str]]:
    """Yields texts of many kinds with their names, the same in every run."""
    dice = random.Random(1)
    root = Path(__file__).parents[1]
    yield "prose", "".join((root / name).read_text() for name in ("README.md", "ARCHITECTURE.md"))
    yield "python", "".join(path.read_text() for path in sorted((root / "tenure" / "domain").glob("*.py"))[:15])
    rows = [{"id": number, "name": f"item {number}", "price": dice.random(), "tags": ["a"]} for number in range(500)]
    yield "json", json.dumps(rows, separators=(",", ":"))
    yield "json, indented", json.dumps(rows, indent=2)
    yield "numbers", "\n".join(",".join(str(dice.randint(0, 10**6)) for _ in range(8)) for _ in range(500))
    yield "uuids", "\n".join(str(uuid.UUID(int=dice.getrandbits(128))) for _ in range(500))
    yield "hex", dice.randbytes(SIZE // 2).hex()
    yield "base64", base64.b64encode(dice.randbytes(SIZE)).decode()
    yield "random letters", "".join(dice.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(SIZE))
    yield "random ascii", "".join(chr(dice.randint(33, 126)) for _ in range(SIZE))
    yield "emoji", "".join(dice.choice("😀🎉🚀🧪🤖🔥👩") for _ in range(SIZE // 8))
    yield from ((name, text * (SIZE // len(text))) for name, text in TEXTS.items())


def main() -> int:
    """Prints the ratios and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.input_estimate", description=__doc__)
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json")
    count = _counter(parser.parse_args().tokenizer)
    real = "" if count is None else f"{'tokenizer':>10} {'bytes/token':>12}"
    sys.stdout.write(f"{'bound ÷ tokens of':18}{'simulator':>10} {real}\n")
    for kind, text in samples():
        bound = _bound(text)
        line = f"{kind:18}{bound / count_text(text):10.2f}"
        if count is not None:
            tokens = count(text)
            line += f" {bound / tokens:10.2f} {len(text.encode()) / tokens:12.2f}"
        sys.stdout.write(line + "\n")
    sys.stdout.write(f"{_microseconds_a_kib():.0f} µs of processor time for a KiB of prose\n")
    return 0


def _bound(text: str) -> int:
    """Returns the bound of a message that has only this text."""
    empty = InputEstimate("", ()).upper_bound([])
    message = {"role": "user", "content": [{"type": "text", "text": text}]}
    return InputEstimate("", ()).upper_bound([message]) - empty


def _counter(path: Path | None) -> Count | None:
    if path is None:
        return None
    from tokenizers import Tokenizer  # type: ignore[import-not-found]

    tokenizer = Tokenizer.from_file(str(path))
    return lambda text: len(tokenizer.encode(text).ids)


def _microseconds_a_kib() -> float:
    text = next(text for kind, text in samples() if kind == "prose") * 4
    began = time.process_time()
    _bound(text)
    return (time.process_time() - began) / (len(text) / 1024) * 1e6


if __name__ == "__main__":
    sys.exit(main())
