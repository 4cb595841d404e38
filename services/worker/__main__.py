"""`python -m services.worker`."""

import sys

from tenure.runtime.importing import imports_kept

with imports_kept():
    from services.worker.main import main

sys.exit(main())
