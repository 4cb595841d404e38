"""What was broken that must not be: the checker's violations, and what it cannot see (logs, deaths, clients)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from checker.verify import Report, Violation
from tests.fault.suite.evidence import Marks
from tests.fault.suite.installation import Installation
from tests.fault.suite.keeper import ProcessExit
from tests.fault.suite.traffic import Traffic

MAX_SHOWN: Final = 1500
EXPECTED_ERRORS: Final = re.compile(
    r"this runner could not renew in time"  # frozen or cut off from its database: what it is to do then
    r"|the process failed"  # what it needs was away when it started; that it served and then failed is a DEATH
)


def violations_of(
    install: Installation, traffic: Traffic, report: Report, marks: Marks, deaths: list[ProcessExit]
) -> list[Violation]:
    """Everything but the delays."""
    return [
        *report.violations,
        *(Violation("CLIENT", "", surprise) for surprise in traffic.log.surprises),
        *(Violation("DEATH", "", str(death)) for death in deaths if death.surprising),
        *(Violation("LOG", "", line) for path in sorted(install.logs.glob("*.log")) for line in _errors(marks, path)),
    ]


def _errors(marks: Marks, path: Path) -> Iterator[str]:
    """What a service logged as an error: none of our faults is one."""
    for line in marks.since(path):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record.get("level") in {"ERROR", "CRITICAL"} and not EXPECTED_ERRORS.search(record.get("message", "")):
            yield f"{path.stem}: {line.strip()[:MAX_SHOWN]}"
