"""Reading Python without running it: names, containers, functions and classes of a script, followed as Python has them.

What is certain is a value. What only a run can tell (arguments of the program, the environment, other packages) is an
`Unknown` that says why; so is whatever may have been changed by code that is not followed. Nothing of the user's runs:
only built-in operations on constants and Skyward's own values do.
"""

from skyward.build.static.interpreter import Interpreter
from skyward.build.static.reading import PoolCall, Reading
from skyward.build.static.source import Source
from skyward.build.static.values import Unknown

__all__ = ["Interpreter", "PoolCall", "Reading", "Source", "Unknown"]
