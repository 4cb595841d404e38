"""`python -m services.worker`."""

import sys

from tenure.runtime.fast_start import imports_kept

with imports_kept():
    from services.worker.main import main

sys.exit(main())
