"""Programs of the Makefile, from the standard library alone: what tests run on, and the pages of the site."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - this runs before anything has checked the version
    sys.exit("skyward's scripts need Python 3.11 or newer; this is " + sys.version.split()[0])
