"""Translation of the docker SDK's exceptions, and of engines' answers, into skyward's errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from skyward.errors import EngineError, EngineMissingError, ImageNotFoundError, RegistryError, SkywardError
from skyward.model.image_fields import without_logins

ADVICE = (
    "Start Docker (for example `systemctl start docker`), or run `make engine` in a checkout of skyward and "
    "source .engine/env, or use provider=sky.Local() to run without containers."
)


_NO_GPU = (
    "Containers on this engine get no GPU: install the NVIDIA driver and the NVIDIA Container Toolkit on the machine, "
    "run `nvidia-ctk runtime configure --runtime=docker`, and restart the engine."
)
# engines' errors with advice; the first match is used
_KNOWN: tuple[tuple[str, type[SkywardError], str], ...] = (
    (r"no space left on device", EngineError, "Free some space, for example with `docker system prune`."),
    (
        r"no such image|manifest.* (unknown|not found)|pull access denied|repository does not exist",
        ImageNotFoundError,
        "Check the image's name and tag.",
    ),
    (
        r"could not select device driver|nvidia-container|unresolvable CDI devices|unknown or invalid runtime name",
        EngineError,
        _NO_GPU,
    ),
    (
        r"bind source path does not exist",
        EngineError,
        "The engine does not see this program's files, and sky.Docker() needs a directory that both see at one path. "
        "For a program in a container: docker run -v /run/skyward:/run/skyward -e XDG_RUNTIME_DIR=/run/skyward ...",
    ),
)


def advice_on(engine: str) -> str:
    """Return advice for an engine that does not answer; `engine` is its address."""
    return ADVICE if engine.startswith("unix://") else "Check the machine, its engine and the network between."


class LimitRefusedError(EngineError):
    """The engine may not set a resource limit; `limit` is its name."""

    def __init__(self, message: str, limit: str) -> None:
        super().__init__(message)
        self.limit = limit


@contextmanager
def engine_call(action: str, engine: str) -> Iterator[None]:
    """Map failures of the SDK; `action` completes "The Docker engine at X could not ..."."""
    import docker.errors
    import urllib3.exceptions

    try:
        yield
    except docker.errors.APIError as error:
        # the message has the engine's answer; the 40 lines of SDK and requests frames before it add nothing
        raise translate(action, engine, str(error.explanation or error)) from None
    except (docker.errors.DockerException, urllib3.exceptions.HTTPError, OSError) as error:
        # requests' exceptions are OSErrors
        refusal = getattr(error, "response", None)
        if refusal is not None:  # from a request whose status the SDK does not check
            raise translate(action, engine, refusal.text) from error
        if isinstance(_innermost(error), TimeoutError):
            raise too_slow(action, engine, _innermost(error)) from error
        raise broken_off(action, engine, _innermost(error), advice_on(engine)) from error


def broken_off(action: str, engine: str, error: BaseException, advice: str = ADVICE) -> EngineMissingError:
    """Return the error for an engine, or a connection to it, that ended in the middle of an answer."""
    message = f"The Docker engine at {engine} broke off when asked to {action} ({error})."
    return EngineMissingError(f"{message} {advice}".rstrip())


def too_slow(action: str, engine: str, error: BaseException) -> EngineError:
    """Return the error for an engine that does not answer a request in time."""
    return EngineError(
        f"The Docker engine at {engine} did not {action} in time ({error}). It may be busy, frozen, or wait for "
        "something itself: its log says more."
    )


def translate(action: str, engine: str, answer: str) -> SkywardError:
    """Return the error for an engine's answer."""
    answer = _words(answer).strip().rstrip(".")
    message = f"The Docker engine at {engine} could not {action}. It answered: {answer}."
    limit = refused_limit(answer)
    if limit:
        return LimitRefusedError(message, limit)
    for pattern, kind, advice in _KNOWN:
        if re.search(pattern, answer, re.IGNORECASE):
            return kind(f"{message} {advice}")
    return EngineError(message)


# answers of registries, and what to do
_REFUSALS = (
    (
        r"unauthorized|denied|authentication required|no basic auth|insufficient_scope",
        "Log in with `docker login {registry}`, with a user who has access to {name}, and check that it exists.",
    ),
    (
        r"HTTP response to HTTPS client",
        'The engine expects TLS: name the registry under "insecure-registries" in its daemon.json, for Podman as '
        "insecure in registries.conf.",
    ),
    (
        r"x509|certificate",
        "The engine does not trust its certificate: put the CA into /etc/docker/certs.d/{registry}/ca.crt there.",
    ),
    (r"name unknown|repository .*not (found|exist)", "Create the repository {name} first."),
    (r"manifest.* (unknown|not found)", "Check the image's name and tag."),
)


def registry_failure(action: str, ref: str, engine: str, answer: str) -> RegistryError:
    """Return the error for a registry that did not do what an engine asked; `action` is as in `engine_call`."""
    name = ref.partition("@")[0]
    name = name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name
    first = name.partition("/")[0]
    registry = first if first != name and re.search(r"[.:]|^localhost$", first) else "docker.io"
    advice = next((text for pattern, text in _REFUSALS if re.search(pattern, answer, re.IGNORECASE)), "")
    return RegistryError(
        f"The registry {registry} refused or failed when the Docker engine at {engine} was asked to {action}: "
        f"{without_logins(_words(answer).strip().rstrip('.'))}.",
        advice.format(registry=registry, name=name)
        or "Check that the registry runs and that the engine's machine can reach it.",
    )


def refused_limit(answer: str) -> str | None:
    """Return the resource limit that an engine's answer refuses to set; None if it is about something else."""
    by_number = re.search(r"setting rlimit type (\d+)", answer)  # runc; numbers of Linux' resource.h
    if by_number:
        return {"3": "stack", "6": "nproc", "7": "nofile", "8": "memlock"}.get(by_number[1])
    by_name = re.search(r"setrlimit `?RLIMIT_(\w+)", answer)  # crun
    return by_name[1].lower() if by_name else None


def _words(answer: str) -> str:
    """Return the sentence of an answer in JSON; Podman's also has cause and number."""
    try:
        return str(json.loads(answer)["message"])
    except (ValueError, KeyError, TypeError):  # already a sentence
        return answer


def _innermost(error: BaseException) -> BaseException:
    """Return the system's own error, from under the layers of HTTP libraries."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return error
