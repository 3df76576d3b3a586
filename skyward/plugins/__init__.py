"""Plugins: additions of frameworks to a pool. `sky.plugins.<name>` is looked up in the registry on first use."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from skyward.plugins.base import Plugin, check

if TYPE_CHECKING:  # names that are imported on first use, for type checkers and editors
    from skyward.plugins._dask import dask as dask
    from skyward.plugins._huggingface import huggingface as huggingface
    from skyward.plugins._jax import jax as jax
    from skyward.plugins._joblib import joblib as joblib
    from skyward.plugins._joblib import sklearn as sklearn
    from skyward.plugins._keras import keras as keras
    from skyward.plugins._metrics import metrics as metrics
    from skyward.plugins._ray import ray as ray
    from skyward.plugins._tensorflow import tensorflow as tensorflow
    from skyward.plugins._torch import torch as torch
    from skyward.plugins.hooks import around_client, node_setup, transform_all

__all__ = ["Plugin", "around_client", "check", "node_setup", "transform_all"]


def __getattr__(name: str) -> Callable[..., Plugin]:
    if name in __all__:  # nodes never use the client's half
        made: Callable[..., Any] = getattr(import_module("skyward.plugins.hooks"), name)
        return made
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from skyward.plugins.registry import load  # importing importlib.metadata takes as long as importing skyward

    return load(name)


def __dir__() -> list[str]:
    from skyward.plugins.registry import names

    return sorted({*globals(), *__all__, *names()})
