"""Run Python functions on machines that exist only while they are needed.

The public names, imported on first use: `import skyward` by itself loads nothing else.
"""

import sys
from types import ModuleType

TYPE_CHECKING = False  # type checkers take it for true; importing `typing` would take longer than all of this file
if TYPE_CHECKING:
    from skyward import errors as errors
    from skyward import integrations as integrations
    from skyward import plugins as plugins
    from skyward._version import __version__ as __version__
    from skyward.compute import PendingCompute as PendingCompute
    from skyward.compute import compute as compute
    from skyward.compute import gather as gather
    from skyward.compute import sky as sky
    from skyward.model.accelerator import Accelerator as Accelerator
    from skyward.model.image import Image as Image
    from skyward.model.image import PipIndex as PipIndex
    from skyward.model.instance import InstanceInfo as InstanceInfo
    from skyward.model.spec import Cluster as Cluster
    from skyward.model.spec import Nodes as Nodes
    from skyward.model.spec import Worker as Worker
    from skyward.model.volume import Volume as Volume
    from skyward.plugins import Plugin as Plugin
    from skyward.pool.decorator import pool as pool
    from skyward.pool.pool import ComputePool as ComputePool
    from skyward.providers.aws.provider import AWS as AWS
    from skyward.providers.compose import Compose as Compose
    from skyward.providers.docker import Docker as Docker
    from skyward.providers.local import Local as Local
    from skyward.providers.ssh import SSH as SSH
    from skyward.providers.swarm.provider import Swarm as Swarm
    from skyward.runtime.instance import instance_info as instance_info
    from skyward.runtime.mute import silent as silent
    from skyward.runtime.mute import stderr as stderr
    from skyward.runtime.mute import stdout as stdout
    from skyward.runtime.shard import shard as shard

# public name -> the module that defines it; the module itself where it bears the name
_HOMES = {
    "AWS": "skyward.providers.aws.provider",
    "Accelerator": "skyward.model.accelerator",
    "Cluster": "skyward.model.spec",
    "Compose": "skyward.providers.compose",
    "ComputePool": "skyward.pool.pool",
    "Docker": "skyward.providers.docker",
    "Image": "skyward.model.image",
    "InstanceInfo": "skyward.model.instance",
    "Local": "skyward.providers.local",
    "Nodes": "skyward.model.spec",
    "PendingCompute": "skyward.compute",
    "PipIndex": "skyward.model.image",
    "Plugin": "skyward.plugins",
    "SSH": "skyward.providers.ssh",
    "Swarm": "skyward.providers.swarm.provider",
    "Volume": "skyward.model.volume",
    "Worker": "skyward.model.spec",
    "__version__": "skyward._version",
    "compute": "skyward.compute",
    "errors": "skyward.errors",
    "gather": "skyward.compute",
    "instance_info": "skyward.runtime.instance",
    "integrations": "skyward.integrations",
    "plugins": "skyward.plugins",
    "pool": "skyward.pool.decorator",
    "shard": "skyward.runtime.shard",
    "silent": "skyward.runtime.mute",
    "sky": "skyward.compute",
    "stderr": "skyward.runtime.mute",
    "stdout": "skyward.runtime.mute",
}

__all__ = [  # noqa: PLE0604 - the names of the table above; a test compares them with the imports
    *sorted(_HOMES),
]


class _Package(ModuleType):
    """The type of this package: `skyward.compute` and `skyward.pool` stay functions.

    The import system binds a submodule as an attribute of its package when it is first imported, whenever that is.
    For the submodules whose names are public functions that must not happen.
    """

    def __getattr__(self, name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        __import__(home)
        module = sys.modules[home]
        value = module if home == f"{self.__name__}.{name}" and name not in vars(module) else vars(module)[name]
        super().__setattr__(name, value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        is_submodule = isinstance(value, ModuleType) and value.__name__ == f"{self.__name__}.{name}"
        if not (is_submodule and name in ("compute", "pool")):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return __import__, (self.__name__,)  # a function that uses `sky` is pickled with a reference to it

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *_HOMES})


sys.modules[__name__].__class__ = _Package
