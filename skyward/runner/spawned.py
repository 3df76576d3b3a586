"""`__main__` of a process that a function on a node spawns with `multiprocessing`, which runs this module as it."""

import sys

from skyward.runner.main_module import restore

restore(sys.modules[__name__])
