"""`python -m spec`."""

import sys

from spec.check import main

sys.exit(main())
