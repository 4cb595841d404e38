"""`python -m services.gateway`."""

import sys

from tenure.runtime.fast_start import imports_kept

with imports_kept():
    from services.gateway.main import main

sys.exit(main())
