"""`python -m services.tools`."""

import sys

from tenure.runtime.fast_start import imports_kept

with imports_kept():
    from services.tools.main import main

sys.exit(main())
