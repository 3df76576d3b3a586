"""Run Python functions on machines that exist only while they are needed.

Public names are imported on first use: `import skyward` alone loads nothing else.
"""

import sys

# public name -> the module that defines it, or the module itself if it has that name
_HOMES = {
    "AWS": "skyward.providers.aws.provider",
    "Accelerator": "skyward.model.spec",
    "Cluster": "skyward.model.spec",
    "Compose": "skyward.providers.compose",
    "ComputePool": "skyward._pool.pool",
    "Docker": "skyward.providers.docker",
    "GCP": "skyward.providers.gcp.provider",
    "Image": "skyward.model.image",
    "InstanceInfo": "skyward.model.instance",
    "Kubernetes": "skyward.providers.kubernetes.provider",
    "Local": "skyward.providers.local",
    "Nodes": "skyward.model.spec",
    "PendingCompute": "skyward._compute",
    "PipIndex": "skyward.model.image",
    "Plugin": "skyward.plugins",
    "SSH": "skyward.providers.ssh",
    "Slurm": "skyward.providers.slurm.provider",
    "Volume": "skyward.model.spec",
    "Worker": "skyward.model.spec",
    "__version__": "skyward._version",
    "checkpoint": "skyward.runtime.checkpoint",
    "compute": "skyward._compute",
    "debug": "skyward._pool.debug",
    "errors": "skyward.errors",
    "gather": "skyward._compute",
    "instance_info": "skyward.runtime.ranks",
    "integrations": "skyward.integrations",
    "output_folder": "skyward.runs.saved",
    "plugins": "skyward.plugins",
    "pool": "skyward._pool.decorator",
    "providers": "skyward.providers",
    "save": "skyward.runs.saved",
    "shard": "skyward.runtime.shard",
    "silent": "skyward.runtime.output",
    "sky": "skyward.runtime.active_pool",
    "stderr": "skyward.runtime.output",
    "stdout": "skyward.runtime.output",
}

__all__ = [  # noqa: PLE0604 - the names of the table above; a test compares them with the imports
    *sorted(_HOMES),
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        module = sys.modules[__name__]  # Python suggests similar names from it
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=module)
    try:
        __import__(home)
    except (ImportError, AttributeError) as error:
        if sys.platform != "win32":
            if hiding := _hiding():
                raise ImportError(f"sky.{name} cannot be imported: {hiding} Rename it. ({error})") from None
            raise
        raise ImportError(
            f"sky.{name} takes Linux or macOS. On Windows run the program in its Subsystem for Linux, WSL 2. ({error})"
        ) from error
    module = sys.modules[home]
    value = module if home == f"{__name__}.{name}" else vars(module)[name]
    globals()[name] = value
    return value


def _hiding() -> str:
    """Return a message about a file beside the program that shadows a needed module; "" if there is none."""
    place = sys.path[0] if sys.path else ""
    for module in ("cloudpickle", *sorted(sys.stdlib_module_names)):
        file = getattr(sys.modules.get(module), "__file__", None) or ""
        if place and file in (f"{place}/{module}.py", f"{place}/{module}/__init__.py"):
            return f"the program's own {file} is imported in place of the module {module} that skyward needs."
    return ""


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
