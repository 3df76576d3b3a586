"""The classes of errors."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

from skyward import errors
from skyward.errors import SkywardError

FACTS: dict[str, dict[str, Any]] = {
    "BuildError": {"step": "RUN pip", "origin": "plugin torch", "log": "no such package"},
    "CollectiveHangError": {"returned": (0,), "waiting": (1, 2)},
    "RegistryError": {"remedy": "Log in."},
    "RemoteError": {"type_name": "Own", "traceback": "File ..."},
    "WorkerLostError": {"node": 1, "rank": 3, "oom": True},
}
ALL = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, SkywardError)]


@pytest.mark.parametrize("kind", ALL)
def test_copies_and_pickles_are_the_same_error(kind: type[SkywardError]) -> None:
    """With text, facts and notes, as `multiprocessing` passes it on."""
    error = kind("It failed.", **FACTS.get(kind.__name__, {}))
    error.add_note("on node 1")

    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
