"""Image registries: is an image there, put it there, add code to it. Nothing here but `push` needs an engine.

    found = existence.check(target, platform="linux/amd64")      # Exists(digest, reference) | Absent() | Unknown(...)
    pushed = push(tag, target, platform=..., engine=images, report=report)      # Pushed(reference="name@sha256:...")
    found = push_zstd(tag, target, platform=..., report=report, docker_host=url)      # Exists; layers unpack faster
    cache = shared_cache(target, platform, is_whole=...)      # for `ensure`: layers that others have pushed there
    baked = append(source, target, files, into="/opt/code", platform=...)       # Appended(...): one layer, no build

`target` and `source` are references as people write them, `registry.example.com/team/skyward:sky-1-0123456789abcdef`;
`with_tag(where, tag)` makes one of what `--push` got. Plain http is spoken to loopback addresses, and where the
reference begins with `http://`. Credentials are those of `docker login`; for ECR those of AWS.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from skyward.build.registry import existence
from skyward.build.registry.existence import Absent, Exists, Unknown
from skyward.build.registry.reference import Reference, parse_reference, with_tag

if TYPE_CHECKING:
    from skyward.build.registry.appending import Appended, BakedFile, append
    from skyward.build.registry.caching import SharedCache, shared_cache
    from skyward.build.registry.pushing import Pushed, push
    from skyward.build.registry.zstd import push_zstd

__all__ = [
    "Absent",
    "Appended",
    "BakedFile",
    "Exists",
    "Pushed",
    "Reference",
    "SharedCache",
    "Unknown",
    "append",
    "existence",
    "parse_reference",
    "push",
    "push_zstd",
    "shared_cache",
    "with_tag",
]

# loaded on first use: a start whose image is known needs none of them, and they take longer than it
_HOMES = {
    **dict.fromkeys(("Appended", "BakedFile", "append"), "appending"),
    **dict.fromkeys(("Pushed", "push"), "pushing"),
    **dict.fromkeys(("SharedCache", "shared_cache"), "caching"),
    "push_zstd": "zstd",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
