"""`python -m services.checkpoint`."""

import sys

from tenure.runtime.fast_start import imports_kept

with imports_kept():
    from services.checkpoint.main import main

sys.exit(main())
