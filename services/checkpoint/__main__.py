"""`python -m services.checkpoint`."""

import sys

from services.checkpoint.main import main

sys.exit(main())
