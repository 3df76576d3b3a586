"""Places of pools as commands name them with `--at`, such as `ssh://user@host`, and the providers that look there."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode

from skyward import providers
from skyward.errors import ConfigError
from skyward.model.ssh import SshHost
from skyward.providers.base import Provider

FORMS = "ssh://user@host, aws, aws://region, gcp://zone, slurm://login, kubernetes, kubernetes://namespace"


def provider_at(place: str) -> Provider:
    """Return the provider that finds the pools at a place.

    `?key=FILE&known_hosts=FILE` may follow a machine, `?context=NAME&kubeconfig=FILE` a namespace. The name of a
    provider of an installed package may stand before `://` as well, with its only argument behind.

    Raises:
        ConfigError: it is not a place.
    """
    kind, _, rest = place.partition("://")
    address, _, query = rest.partition("?")
    settings: dict[str, Any] = dict(parse_qsl(query))
    given = [address] if address else []
    try:
        match kind:
            case "ssh":
                return providers.SSH(f"ssh://{address}", **settings)
            case "aws":
                return providers.AWS(*given, **settings)
            case "gcp":
                return providers.GCP(*given, **settings)
            case "slurm":
                return providers.Slurm(*given, **settings)
            case "kubernetes":
                return providers.Kubernetes(namespace=address or None, **settings)
            case _:
                provider: Provider = providers.extensions().load(kind)(*([rest] if rest else []))
                return provider
    except (TypeError, AttributeError) as error:
        raise ConfigError(f"--at {place}: this is not a place ({error}). A place is one of {FORMS}.") from error


def ssh_at(place: str) -> providers.SSH:
    """Return the provider for one machine, such as `user@host` or `ssh://user@host?key=FILE&known_hosts=FILE`.

    Raises:
        ConfigError: it is not a machine.
    """
    found = provider_at(place if "://" in place else f"ssh://{place}")
    if not isinstance(found, providers.SSH):
        raise ConfigError(f"A machine is named as ssh://user@host; found {place!r}.")
    return found


def places_of(provider: Provider) -> tuple[str, ...]:
    """Return the places at which other processes find the pools of a provider; none for this machine's own."""
    known: Any = provider
    match provider.name:
        case "ssh":
            return tuple(_of_host("ssh", host) for host in known.hosts)
        case "slurm":
            return (_of_host("slurm", known.address.host) if known.address.host else "slurm",)
        case "aws" | "gcp":
            return (f"{provider.name}://{known.region}" if known.region else provider.name,)
        case "kubernetes":
            address = known.address
            query = _query(context=address.context, kubeconfig=address.kubeconfig)
            return (f"kubernetes://{address.namespace or ''}{query}",)
        case _:  # of a fallback all
            return tuple(place for each in getattr(known, "providers", ()) for place in places_of(each))


def _of_host(kind: str, host: SshHost) -> str:
    return f"{kind}://{host.name}{_query(key=host.key, known_hosts=host.known_hosts)}"


def _query(**settings: object) -> str:
    found = {name: str(value) for name, value in settings.items() if value is not None}
    return f"?{urlencode(found, safe='/~')}" if found else ""
