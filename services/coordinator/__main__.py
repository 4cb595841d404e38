"""`python -m services.coordinator`."""

import sys

from services.coordinator.main import main

sys.exit(main())
