"""`python -m services.tools`."""

import sys

from services.tools.main import main

sys.exit(main())
