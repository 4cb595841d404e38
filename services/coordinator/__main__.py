"""`python -m services.coordinator`."""

import sys

from services.coordinator.main import main

if __name__ == "__main__":
    sys.exit(main())
