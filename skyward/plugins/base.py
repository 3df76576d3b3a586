"""`Plugin`: a framework's additions to a pool's image, nodes, workers, calls and client, as one frozen value.

It holds the hooks; `hooks` in this package calls them. Standard library and cloudpickle only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from skyward.errors import ConfigError, PluginError
from skyward.model.secrets import Secrets

if TYPE_CHECKING:
    from skyward.model.image import Image
    from skyward.model.instance import InstanceInfo
    from skyward.model.spec import Cluster

# a shell command (run by `sh -e`), a function without parameters, or a sequence of these
Op: TypeAlias = "str | Callable[[], object] | Sequence[Op]"
Transform: TypeAlias = "Callable[[Image, Cluster], Image]"
Bootstrap: TypeAlias = "Callable[[Cluster], Sequence[Op]]"
Decorate: TypeAlias = "Callable[[Callable[..., Any]], Callable[..., Any]]"
AroundWorker: TypeAlias = "Callable[[InstanceInfo], AbstractContextManager[Any]]"
PoolSecrets: TypeAlias = "Callable[[], Mapping[str, str]]"
AroundClient: TypeAlias = "Callable[[Any, Cluster], AbstractContextManager[Any]]"

HOOKS = ("transform", "bootstrap", "decorate", "around_app", "around_process", "around_client")
SERVERS = ("ray", "dask")  # plugins with a cluster server on the pool's port, where replaced nodes find it, too
LATEST = "latest"
_OPERATOR = re.compile(r"\s*(===|~=|==|!=|<=|>=|<|>)")
WORKER_HOOKS = ("decorate", "around_app", "around_process")  # hooks that are sent to the nodes


@dataclass(frozen=True, slots=True, repr=False)
class Plugin:
    """An addition to every pool that lists it: a name and up to six hooks.

    Created by `Plugin.create(name)` and the `with_...` methods, each of which returns a new value. A plugin with
    settings is a function that returns a `Plugin`. Hooks may contain secrets: a plugin's repr shows only their names.

    Order, over the pool's list of plugins: all `transform`s, image built, node started, all `bootstrap`s, all
    `around_app`s, all `around_process`es, then calls through the `decorate` chain; contexts are exited in reverse.

    Attributes:
        name: its name in messages; unique in a pool.
        transform: `(Image, Cluster) -> Image`, on the client, pure. Receives the image that the previous plugin
            returned and adds to it: it must not remove packages or indexes. No machine exists yet; `cluster.spec` is
            the plan.
        bootstrap: `(Cluster) -> ops`, on the client; the ops run once on every node when it starts, in order, in one of
            its workers, even if the image already existed. They are for the node's files and services: set-up of a
            process (its environment, say) belongs in `around_app`.
        decorate: `(fn) -> fn`, on the worker; wraps every function that is called. The first plugin is outermost.
        around_app: `(InstanceInfo) -> context manager`, entered once per worker process, in its main thread, before its
            first call, and exited when the worker ends.
        around_process: the same, after all `around_app`s, and only if nodes have several worker processes.
        around_client: `(ComputePool, Cluster) -> context manager`, on the client, entered when the pool is ready and
            exited before it ends.
        collective: whether the pool's ranks form one group that no rank can leave or enter alone: their hooks wait for
            each other, and if one is lost all are restarted.
        secrets: variables that workers receive before any hook runs, like those of `ComputePool(secrets=...)`.
        pool_secrets: `() -> mapping`, on the client: the same, created for each pool.
    """

    name: str
    transform: Transform | None = None
    bootstrap: Bootstrap | None = None
    decorate: Decorate | None = None
    around_app: AroundWorker | None = None
    around_process: AroundWorker | None = None
    around_client: AroundClient | None = None
    collective: bool = False
    secrets: Secrets = field(default_factory=Secrets)
    pool_secrets: PoolSecrets | None = None

    def __post_init__(self) -> None:
        name: object = self.name
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"A plugin needs a name that messages can call it by; found {name!r}.")
        for hook in HOOKS:
            value = getattr(self, hook)
            if value is not None and not callable(value):
                raise ConfigError(f"Plugin {self.name!r}: {hook} must be a function; found {type(value).__name__}.")
        object.__setattr__(self, "secrets", Secrets.of(self.secrets, f"Plugin {self.name!r}: secrets"))

    @classmethod
    def create(cls, name: str) -> Plugin:
        """Return a plugin without hooks."""
        return cls(name)

    def with_image_transform(self, fn: Transform) -> Plugin:
        """Add the `transform` hook."""
        return self._with("transform", fn)

    def with_bootstrap(self, fn: Bootstrap) -> Plugin:
        """Add the `bootstrap` hook."""
        return self._with("bootstrap", fn)

    def with_decorator(self, fn: Decorate) -> Plugin:
        """Add the `decorate` hook."""
        return self._with("decorate", fn)

    def with_around_app(self, fn: AroundWorker) -> Plugin:
        """Add the `around_app` hook."""
        return self._with("around_app", fn)

    def with_around_process(self, fn: AroundWorker) -> Plugin:
        """Add the `around_process` hook."""
        return self._with("around_process", fn)

    def with_around_client(self, fn: AroundClient) -> Plugin:
        """Add the `around_client` hook."""
        return self._with("around_client", fn)

    def with_collective(self) -> Plugin:
        """Declare that the ranks form one group; see `collective`."""
        return replace(self, collective=True)

    def with_secrets(self, *names: str, **values: str) -> Plugin:
        """Add secret variables: by name, to be read from the client's environment, or with their values.

        Raises:
            ConfigError: a name is not valid for a variable, or a value is not text.
        """
        what = f"Plugin {self.name!r}: secrets"
        added = Secrets.of(names, what).entries + Secrets.of(values, what).entries
        return replace(self, secrets=Secrets(tuple({**dict(self.secrets.entries), **dict(added)}.items())))

    def with_pool_secrets(self, make: PoolSecrets) -> Plugin:
        """Add secret variables that differ for each pool, such as keys by which its nodes authenticate each other."""
        return replace(self, pool_secrets=make)

    def _with(self, hook: str, fn: object) -> Plugin:
        if getattr(self, hook) is not None:
            raise ConfigError(
                f"Plugin {self.name!r} has a {hook} hook, which a second one would silently replace; list two plugins."
            )
        if fn is None:
            raise ConfigError(f"Plugin {self.name!r}: {hook} must be a function; found None.")
        changed: dict[str, Any] = {hook: fn}
        return replace(self, **changed)

    def __repr__(self) -> str:
        has = [hook for hook in HOOKS if getattr(self, hook) is not None] or ["no hooks"]
        has += ["collective"] * self.collective + [f"secret {name}" for name in self.secrets.names]
        return f"<plugin {self.name}: {', '.join(has)}>"


def check(plugins: Sequence[Plugin]) -> None:
    """Check a pool's plugins before anything is created.

    Raises:
        ConfigError: an entry is not a plugin, two have the same name, or two would listen on the pool's port.
        PluginError: a hook that runs on the nodes cannot be pickled; the message names plugin and hook.
    """
    seen: dict[str, int] = {}
    for position, plugin in enumerate(plugins):
        if not isinstance(plugin, Plugin):
            raise ConfigError(f"plugins[{position}] {_not_a_plugin(plugin)}")
        if plugin.name in seen:
            raise ConfigError(
                f"plugins[{seen[plugin.name]}] and plugins[{position}] are both named {plugin.name!r}; list it once."
            )
        seen[plugin.name] = position
        for hook in WORKER_HOOKS:
            check_pickles(getattr(plugin, hook), plugin.name, hook)
    _check_port(plugins)


def _check_port(plugins: Sequence[Plugin]) -> None:
    """Check the use of the one port that a pool claims on node 0: a cluster's server needs it, a group uses another one
    if it is taken.
    """
    serving = [plugin.name for plugin in plugins if plugin.name in SERVERS]
    if len(serving) > 1:
        raise ConfigError(
            f"The plugins {serving[0]!r} and {serving[1]!r} cannot be in one pool: each has a server on the one port "
            "that a pool claims on node 0. Open a pool for each."
        )
    names = [plugin.name for plugin in plugins if plugin.collective or plugin.name in SERVERS]
    if serving and names[0] != serving[0]:
        raise ConfigError(
            f"List the plugin {serving[0]!r} before {names[0]!r}: its server needs the port that the pool claims on "
            "node 0, and a group of ranks that is made later uses another one."
        )


def check_pickles(value: object, plugin: str, hook: str) -> None:
    """Raise PluginError, naming plugin and hook, if a value that is sent to the nodes cannot be pickled."""
    import cloudpickle  # only needed to pickle hooks

    try:
        cloudpickle.dumps(value)
    except Exception as error:  # pickling of third-party objects may raise anything
        raise PluginError(
            f"Plugin {plugin!r}: its {hook} hook goes to the nodes, but cannot be pickled "
            f"({type(error).__name__}: {error}). Create locks, connections and open files inside the hook."
        ) from error


def versioned(package: str, version: str | None, *, where: str) -> str:
    """Return a package with a version, as a requirement for pip.

    Args:
        package: its name, extras included.
        version: "latest" or None for any; a bare version such as "2.3.0" for exactly that; a specifier such as
            ">=2.3,<3" unchanged.
        where: the parameter's name in errors.

    Raises:
        ConfigError: it is neither a version nor a specifier (PEP 440).
    """
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # nodes import this module without it

    if version is None or version == LATEST:
        return package
    given: object = version
    specifier = given.strip() if isinstance(given, str) else ""
    if specifier and not _OPERATOR.match(specifier):
        specifier = f"=={specifier}"
    try:
        parsed = SpecifierSet(specifier)
    except InvalidSpecifier:
        parsed = SpecifierSet()
    if not len(parsed):
        raise ConfigError(
            f"{where} takes 'latest', a version such as '2.3.0' or a specifier such as '>=2.3,<3'; found {version!r}."
        )
    return f"{package}{specifier.replace(' ', '')}"


def check_python(package: str, cluster: Cluster) -> None:
    """Check that the nodes have this program's version of Python, for packages that send its code.

    Raises:
        PluginError: they have another one.
    """
    from skyward.model.image_fields import local_minor

    if cluster.spec.python != local_minor():
        raise PluginError(
            f"{package} takes the same Python on both sides: the nodes would have {cluster.spec.python}, this program "
            f"runs on {local_minor()}. Leave python= out of the image, or run this program with Python "
            f"{cluster.spec.python}."
        )


def add_missing(image: Image, *requirements: str) -> Image:
    """Return the image with these packages; a bare name adds nothing if the image already requires that package."""
    from skyward.model.image import requirement_name  # not needed on nodes

    present = {requirement_name(entry) for entry in image.pip}
    return image.pip_install(*(entry for entry in requirements if entry not in present))


def _not_a_plugin(found: object) -> str:
    if isinstance(found, str):
        return f"is the text {found!r}; write sky.plugins.{found}()."
    if callable(found):
        name = getattr(found, "__name__", type(found).__name__)
        return f"is a function; call it: {name}()."
    return f"is a {type(found).__name__}, not a plugin; write something like sky.plugins.torch()."
