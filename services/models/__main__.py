"""`python -m services.models`."""

import sys

from tenure.runtime.fast_start import imports_kept

with imports_kept():
    from services.models.main import main

sys.exit(main())
