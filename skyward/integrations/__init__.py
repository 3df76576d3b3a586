"""Integrations: decorators that set up a framework for one function, and joblib and scikit-learn on a pool.

Importing this package loads no framework and no other module of it; each name is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors
    from skyward.integrations._decorators import jax as jax
    from skyward.integrations._decorators import keras as keras
    from skyward.integrations._decorators import tensorflow as tensorflow
    from skyward.integrations._decorators import torch as torch
    from skyward.integrations._decorators import transformers as transformers
    from skyward.integrations._joblib import JoblibPool as JoblibPool
    from skyward.integrations._joblib import ScikitLearnPool as ScikitLearnPool
    from skyward.integrations._joblib import joblib_backend as joblib_backend
    from skyward.integrations._joblib import sklearn_backend as sklearn_backend
else:

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{home}"), name)
        globals()[name] = value
        return value


# public name -> module in this package that defines it
_HOMES = {
    "JoblibPool": "_joblib",
    "ScikitLearnPool": "_joblib",
    "jax": "_decorators",
    "joblib_backend": "_joblib",
    "keras": "_decorators",
    "sklearn_backend": "_joblib",
    "tensorflow": "_decorators",
    "torch": "_decorators",
    "transformers": "_decorators",
}

__all__ = [  # noqa: PLE0604 - the names of the table above
    *sorted(_HOMES),
]


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
