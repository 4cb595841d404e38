"""The test of the test: an installation one of whose services has lost a guard must not pass for long."""

from __future__ import annotations

import sys

from tests.fault.mutants.catalogue import MUTATIONS
from tests.fault.mutants.lifting import lift
from tests.fault.suite.installation import Installation
from tests.fault.suite.schedule import kind_of


async def weaken(install: Installation, mutation: str) -> None:
    """Starts every replica of the mutation's service anew, without that guard. Returns when all serve."""
    service = MUTATIONS[mutation].service
    await lift(install.stack.postgres_dsn, [MUTATIONS[mutation]])
    for name, process in install.stack.services.items():
        if kind_of(name) == service:
            process.command[:] = [sys.executable, "-P", "-m", "tests.fault.mutants", service, "--mutation", mutation]
            install.keeper.expect_death(name).kill()
    await install.keeper.all_serve()
