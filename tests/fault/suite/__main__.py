"""`python -m tests.fault.suite`."""

import os
import sys

# Read once, when gRPC is loaded: we start processes and never go on in a forked child, so it has nothing to prepare.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

from tests.fault.suite.run import main

sys.exit(main())
