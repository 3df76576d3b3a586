import docker.errors
import pytest
import requests

from skyward.engine.failures import LimitRefusedError, engine_call, registry_failure, translate
from skyward.errors import EngineError, EngineMissingError, ImageNotFoundError, SkywardError

_RUNC = "OCI runtime create failed: runc create failed: error setting rlimit type 8: operation not permitted: unknown"


@pytest.mark.parametrize(
    ("answer", "kind", "advice"),
    [
        ("write /x: no space left on device", EngineError, "docker system prune"),
        ("No such image: nope:1", ImageNotFoundError, "name and tag"),
        ("manifest for x:1 not found: manifest unknown", ImageNotFoundError, "name and tag"),
        ('could not select device driver "" with capabilities: [[gpu]]', EngineError, "NVIDIA Container Toolkit"),
        (
            "invalid mount config: bind source path does not exist: /x",
            EngineError,
            "-v /run/skyward:/run/skyward",
        ),
        ('{"cause":"x","message":"crun: mount: Permission denied","response":409}', EngineError, "Permission denied."),
        ("something nobody has seen", EngineError, "It answered: something nobody has seen."),
    ],
)
def test_answers_become_sentences(answer: str, kind: type[SkywardError], advice: str) -> None:
    """What an engine answers is repeated, with what was tried, at which engine, and what to do."""
    error = translate("start container a", "unix:///e.sock", answer)
    assert type(error) is kind
    assert advice in str(error)
    assert str(error).startswith("The Docker engine at unix:///e.sock could not start container a. It answered: ")


@pytest.mark.parametrize(
    ("answer", "limit"),
    [
        (_RUNC, "memlock"),
        (_RUNC.replace("type 8", "type 7"), "nofile"),
        (_RUNC.replace("type 8", "type 6"), "nproc"),
        ("crun: setrlimit `RLIMIT_MEMLOCK`: Operation not permitted: OCI permission denied", "memlock"),
    ],
)
def test_refused_limits_are_told_apart(answer: str, limit: str) -> None:
    """A refusal of runc or crun to set a limit names which one, so that only that one is given up."""
    error = translate("start container a", "unix:///e.sock", answer)
    assert isinstance(error, LimitRefusedError)
    assert error.limit == limit


@pytest.mark.parametrize(
    "foreign",
    [requests.exceptions.ReadTimeout("slow"), ConnectionResetError(104, "reset"), docker.errors.DockerException("odd")],
)
def test_nothing_foreign_leaves_the_room(foreign: Exception) -> None:
    """A broken connection is an error of skyward's, caused by the library's."""
    broke_off = pytest.raises(EngineMissingError, match="broke off when asked to list containers")
    with broke_off as caught, engine_call("list containers", "unix:///e.sock"):
        raise foreign
    assert caught.value.__cause__ is foreign


@pytest.mark.parametrize(
    ("ref", "answer", "registry", "advice"),
    [
        ("r.io:5000/a/b:1", "dial tcp: connect: connection refused", "r.io:5000", "Check that the registry runs"),
        ("localhost/b@sha256:1", "denied: no", "localhost", "Log in with `docker login localhost`"),
        ("team/b", "pull access denied for team/b", "docker.io", "Log in with `docker login docker.io`"),
        (
            "python:4",
            "manifest for python:4 not found: manifest unknown",
            "docker.io",
            "Check the image's name and tag",
        ),
    ],
)
def test_a_registry_is_blamed_for_what_it_refuses(ref: str, answer: str, registry: str, advice: str) -> None:
    """Not the machine whose engine has asked it."""
    said = str(registry_failure(f"pull image {ref}", ref, "ssh://me@gpu1", answer))
    assert said.startswith(
        f"The registry {registry} refused or failed when the Docker engine at ssh://me@gpu1 was asked"
    )
    assert f"pull image {ref}: {answer}. {advice}" in said
