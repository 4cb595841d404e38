"""`python -m services.tools`."""

import sys

from tenure.runtime.importing import imports_kept

with imports_kept():
    from services.tools.main import main

sys.exit(main())
