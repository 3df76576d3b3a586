"""`python -m skyward`: the command line."""

import sys

from skyward.cli.main import main

sys.exit(main())
