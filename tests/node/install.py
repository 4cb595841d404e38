"""`python tests/node/install.py [--or-skip]`: installs the Node packages that tests run, of the lock file beside this.

With --or-skip an unreachable registry is not a failure: the reason is kept, and the tests that need the packages
are skipped with it. Any other mistake is one, such as a package that is not what the lock file says.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
STAMP: Final = HERE / "node_modules" / ".installed"
REASON: Final = HERE / "node_modules" / ".unreachable"
_UNREACHABLE: Final = re.compile(
    r"\b(ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ENETUNREACH|EHOSTUNREACH|ETIMEDOUT|ERR_SOCKET_TIMEOUT|E403|E407|E502|E503"
    r"|E504)\b"
)
NPM: Final = (
    *("ci", "--prefix", str(HERE), "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"),
    *("--fetch-retries", "1", "--fetch-timeout", "30000"),
)


def reason_of(errors: str) -> str:
    """Why the registry was not reached, as npm names it. Empty: that is not what went wrong."""
    match = _UNREACHABLE.search(errors)
    return match[1] if match else ""


def install(npm: str, *, or_skip: bool) -> int:
    """The exit code."""
    done = subprocess.run([npm, *NPM], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        STAMP.touch()
        REASON.unlink(missing_ok=True)
        return 0
    reason = reason_of(done.stderr)
    if not or_skip or not reason:
        sys.stderr.write(done.stdout + done.stderr)
        return done.returncode
    sentence = f"the npm registry cannot be reached ({reason}), so the Node packages of tests/node are not installed"
    REASON.parent.mkdir(exist_ok=True)
    REASON.write_text(f"{sentence}; `make node` installs them\n")
    sys.stderr.write(f"{sentence}: tests that need them are skipped.\n")
    return 0


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description="Install the Node packages that tests run.")
    parser.add_argument("--or-skip", action="store_true", help="an unreachable registry is not a failure")
    parser.add_argument("--npm", default=str(Path(sys.executable).with_name("npm")), help="the npm to run")
    arguments = parser.parse_args()
    return install(arguments.npm, or_skip=arguments.or_skip)


if __name__ == "__main__":
    sys.exit(main())
