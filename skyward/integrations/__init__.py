"""Integrations: frameworks set up by a decorator on the function, joblib and scikit-learn sent to a pool.

Importing this loads no framework and none of the modules behind it; each name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skyward.integrations._jax import jax as jax
    from skyward.integrations._joblib import JoblibPool as JoblibPool
    from skyward.integrations._joblib import ScikitLearnPool as ScikitLearnPool
    from skyward.integrations._joblib import joblib_backend as joblib_backend
    from skyward.integrations._joblib import sklearn_backend as sklearn_backend
    from skyward.integrations._keras import keras as keras
    from skyward.integrations._tensorflow import tensorflow as tensorflow
    from skyward.integrations._torch import torch as torch
    from skyward.integrations._transformers import transformers as transformers

# public name -> the module of this package that defines it
_HOMES = {
    "JoblibPool": "_joblib",
    "ScikitLearnPool": "_joblib",
    "jax": "_jax",
    "joblib_backend": "_joblib",
    "keras": "_keras",
    "sklearn_backend": "_joblib",
    "tensorflow": "_tensorflow",
    "torch": "_torch",
    "transformers": "_transformers",
}

__all__ = [  # noqa: PLE0604 - the names of the table above
    *sorted(_HOMES),
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
