"""Reading Python without running it: names, containers, functions and classes of a script, followed as Python has them.

What is certain is a value. What only a run can tell (arguments of the program, the environment, other packages) is an
`Unknown` that says why; so is whatever may have been changed by code that is not followed. Nothing of the user's runs:
only built-in operations on constants and Skyward's own values do.
"""

from skyward.builder.sources.static_eval.interpreter import Interpreter
from skyward.builder.sources.static_eval.reading import PoolCall, Reading
from skyward.builder.sources.static_eval.source import Source
from skyward.builder.sources.static_eval.values import Unknown

__all__ = ["Interpreter", "PoolCall", "Reading", "Source", "Unknown"]
