"""`python -m services.coordinator`."""

import sys

from tenure.runtime.fast_start import imports_kept

with imports_kept():
    from services.coordinator.main import main

sys.exit(main())
