"""`python -m penstock.bench.sim`."""

import sys

from penstock.bench.sim.cli import main

sys.exit(main(sys.argv[1:]))
