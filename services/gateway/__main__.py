"""`python -m services.gateway`."""

import sys

from tenure.runtime.importing import imports_kept

with imports_kept():
    from services.gateway.main import main

sys.exit(main())
