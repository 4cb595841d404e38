"""The scenes of the edges share an installation, as those of tests/end_to_end do."""

from tests.end_to_end.conftest import (
    installation,
    own_installation,
    pytest_runtest_makereport,
    shared_stack,
)

__all__ = ("installation", "own_installation", "pytest_runtest_makereport", "shared_stack")
