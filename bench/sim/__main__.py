"""`python -m bench.sim`."""

import sys

from bench.sim.cli import main

sys.exit(main(sys.argv[1:]))
