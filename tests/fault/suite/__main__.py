"""`python -m tests.fault.suite`."""

import sys

from tests.fault.suite.run import main

sys.exit(main())
