"""Running agents' programs so that they can harm nobody but themselves.

`Sandbox.open` proves that the sandbox holds, or raises SandboxUnavailable (something is missing) or SandboxEscaped (a
probe got out); `Sandbox.run_python` runs one program.
Linux only; elsewhere the module imports and `open` says so.
"""

from services.tools.sandbox.detection import Detection, SandboxSettings, detect
from services.tools.sandbox.limits import SandboxEscaped, SandboxLimits, SandboxUnavailable
from services.tools.sandbox.long_running import Command
from services.tools.sandbox.result import SandboxResult, SandboxStatus
from services.tools.sandbox.sandbox import MAX_CODE_BYTES, Sandbox

__all__ = [
    "MAX_CODE_BYTES",
    "Command",
    "Detection",
    "Sandbox",
    "SandboxEscaped",
    "SandboxLimits",
    "SandboxResult",
    "SandboxSettings",
    "SandboxStatus",
    "SandboxUnavailable",
    "detect",
]
