"""`python -m headrace.benchmarks.gpu_check`."""

import sys

from headrace.benchmarks.gpu_check.run import main

sys.exit(main())
