"""Which files `Image(includes=...)` takes: nothing secret, ignored or outside of it without a word."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skyward.builder.events import warn
from skyward.builder.files import included
from skyward.builder.files.included import included_files, project_files
from skyward.errors import ConfigError
from skyward.model.image import DEFAULT_EXCLUDES

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n"


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    warn.cache_clear()


def _tree(root: Path, **files: str) -> Path:
    return _files(root, files)


def _files(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def _names(root: Path, *includes: str, excludes: tuple[str, ...] = DEFAULT_EXCLUDES) -> list[str]:
    return list(included_files(includes, excludes, root))


SECRETS = [
    (".env", "A=1"),
    (".env.production", "A=1"),
    ("prod.env", "A=1"),
    (".aws/credentials", "[default]"),
    (".ssh/config", "Host a"),
    (".kube/config", "x"),
    ("kubeconfig", "x"),
    ("id_rsa", "x"),
    ("deploy/ID_ED25519", "x"),
    ("server.key", "x"),
    ("server.pem", CERTIFICATE + KEY),
    ("deploy_key", KEY),
    ("store.p12", "x"),
    (".netrc", "machine a"),
    (".pypirc", "[pypi]"),
    (".git-credentials", "https://a:b@c"),
    (".npmrc", "//registry.example.com/:_authToken=abc"),
    ("pip.conf", "[global]\nindex-url = https://me:secret@example.com/simple\n"),
    ("robot.json", '{"type": "service_account",\n "private_key": "-----BEGIN PRIVATE KEY-----"}'),
    ("secrets.toml", "a = 1"),
]


@pytest.mark.parametrize(("name", "content"), SECRETS, ids=[name for name, _ in SECRETS])
def test_credentials_are_taken_only_by_name(tmp_path: Path, name: str, content: str) -> None:
    """A file that looks like credentials is refused, with its name and the ways out; named or left out, it is not."""
    _files(tmp_path, {f"src/{name}": content, "src/a.py": ""})
    with pytest.raises(ConfigError) as refused:
        _names(tmp_path, "src")
    assert f"src/{name}: it seems to hold credentials" in str(refused.value)
    assert f"includes=[..., 'src/{name}']" in str(refused.value)
    assert _names(tmp_path, "src", f"src/{name}") == sorted(["src/a.py", f"src/{name}"])
    assert _names(tmp_path, "src", excludes=(f"src/{name}",)) == ["src/a.py"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (".env.example", "A="),
        ("example.env", "A="),
        ("id_rsa.pub", "ssh-rsa AAAA"),
        ("ca.pem", CERTIFICATE),
        ("secrets.py", "import os"),
        ("credentials.pyi", ""),
        ("keys.py", f'KEY = """\n{KEY}"""'),
        ("kind.yaml", "kind: ConfigMap\nusers: 1"),
        ("environment.yml", "name: a"),
    ],
)
def test_ordinary_files_are_taken(tmp_path: Path, name: str, content: str) -> None:
    """Certificates, public keys, examples and code are no credentials."""
    _files(tmp_path, {f"src/{name}": content})
    assert _names(tmp_path, "src") == [f"src/{name}"]


GIT_PATTERNS = {
    ".gitignore": "*.log\n!keep.log\n/only_top.txt\nbuild/\ndocs/**/draft\n# no\n\\#odd\nspace\\ \n!\n[z-a]\n*.tmp  \n"
    "/final\n",
    "src/.gitignore": "!special.log\n*.csv\nsub/*\n!sub/keep.py\ndeep/\n!deep/kept.py\n",
    "src/sub/.gitignore": "!again.txt\n",
}
GIT_TREE = [
    *("a.log", "keep.log", "only_top.txt", "#odd", "space ", "a.tmp", "[z-a]", "1a", "final"),
    *("src/a.py", "src/a.log", "src/special.log", "src/only_top.txt", "src/t.csv", "src/build/x.py", "src/build.py"),
    *("src/sub/keep.py", "src/sub/lost.py", "src/sub/again.txt", "src/deep/kept.py", "src/é ü/x.py", "src/é ü/x.csv"),
    *("docs/draft", "docs/a/b/draft", "docs/a/draft/x.py", "docs/final"),
]


def test_ignore_files_are_read_as_git_reads_them(tmp_path: Path) -> None:
    """Nested files, exceptions, anchors, folders: the same files as `git ls-files` would add."""
    git = shutil.which("git")
    _files(tmp_path, {**dict.fromkeys(GIT_TREE, ""), **GIT_PATTERNS})
    expected = sorted(
        [
            ".gitignore",
            "src/.gitignore",
            "keep.log",
            "[z-a]",
            "1a",
            "src/a.py",
            "src/special.log",
            "src/only_top.txt",
            "src/build.py",
        ]
        + ["src/sub/keep.py", "src/sub/again.txt", "src/é ü/x.py", "docs/final"]
    )
    if git:
        subprocess.run([git, "init", "-q"], cwd=tmp_path, check=True)
        told = subprocess.run(
            [git, "-c", "core.excludesFile=", "ls-files", "-zo", "--exclude-standard"],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
        assert sorted(told.stdout.decode().strip("\0").split("\0")) == expected
    assert _names(tmp_path, ".") == expected
    assert _names(tmp_path, "src") == [name for name in expected if name.startswith("src/")]
    assert _names(tmp_path / "src", ".") == [name[4:] for name in expected if name.startswith("src/") and git]


def test_a_docker_ignore_file_holds_for_its_folder(tmp_path: Path) -> None:
    """That of the root and that of the included folder, with exceptions and paths as Docker has them."""
    _files(tmp_path, {".dockerignore": "# no\nsrc/data\n**/*.bin\n", "src/.dockerignore": "*\n!a.py\n!in/b.py\n"})
    _files(tmp_path, dict.fromkeys(["src/a.py", "src/x.bin", "src/data/d.py", "src/in/b.py", "src/in/c.py"], ""))
    assert _names(tmp_path, "src") == ["src/a.py", "src/in/b.py"]
    assert "src/data/d.py" in _names(tmp_path, "src/data")
    assert "src/x.bin" in _names(tmp_path, "src", "src/x.bin")
    (tmp_path / ".dockerignore").write_text("[")
    with pytest.raises(ConfigError, match=r"\.dockerignore cannot be read"):
        _names(tmp_path, "src")


def test_what_is_named_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An ignored file, and an ignored folder; Python files that an ignore file leaves out are told of once."""
    _files(tmp_path, {".gitignore": "gen/\n*_pb2.py\n", "gen/a.py": "", "src/x_pb2.py": "", "src/a.py": ""})
    assert _names(tmp_path, "gen", "src") == _names(tmp_path, "gen", "src") == ["gen/a.py", "src/a.py"]
    (line,) = caplog.messages
    assert "leave out 1 Python files: src/x_pb2.py" in line
    assert _names(tmp_path, "src", "src/x_pb2.py") == ["src/a.py", "src/x_pb2.py"]


def test_a_folder_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    """By ignore files or by the image's own patterns; an empty folder is fine."""
    _files(tmp_path, {"out/.gitignore": "*", "out/a.py": "", ".venv/a.py": ""})
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"'out', but all its files are left out by \.gitignore"):
        _names(tmp_path, "out")
    with pytest.raises(ConfigError, match=r"names '\.venv', which Image\(excludes=...\) leaves out"):
        _names(tmp_path, ".venv")
    assert _names(tmp_path, "empty") == []


def test_links_are_followed_inside_only(tmp_path: Path) -> None:
    """A linked package of the project is there, cycles end; what leads out is refused, unless it is named."""
    root, outside = tmp_path / "project", tmp_path / "outside"
    _files(root, {"src/pkg/__init__.py": "", "lib/shared/s.py": "", "top.txt": "top"})
    _files(outside, {"note.txt": "x", "pkg/o.py": ""})
    (root / "src/alias").symlink_to("pkg")
    (root / "src/shared").symlink_to("../lib/shared")
    (root / "lib/shared/back").symlink_to("../../src")
    (root / "src/pkg/again.py").symlink_to("__init__.py")
    (root / "src/loop").symlink_to("loop")
    (root / "src/gone").symlink_to("nowhere")
    inside = ["alias/__init__.py", "alias/again.py", "pkg/__init__.py", "pkg/again.py", "shared/s.py"]
    assert _names(root, "src") == [f"src/{name}" for name in inside]
    for name, target in (("file", outside / "note.txt"), ("folder", outside / "pkg"), ("up", root / "top.txt")):
        link = root / "src" / name
        link.symlink_to(target)
        with pytest.raises(ConfigError, match=rf"src/{name}: a link that leads out, to {target}"):
            _names(root, "src")
        named = f"src/{name}/o.py" if target.is_dir() else f"src/{name}"
        assert named in _names(root, "src", f"src/{name}")
        link.unlink()
    (root / "src/innocent").symlink_to(_files(root, {"src/.x/.ssh/y": ""}) / "src/.x/.ssh/y")
    with pytest.raises(ConfigError, match="src/innocent: it seems to hold credentials"):
        _names(root, "src", "src/.x/.ssh/y")
    (root / "src/dangling").symlink_to("nowhere")
    with pytest.raises(ConfigError, match=r"'src/dangling', a link to nowhere, which does not exist"):
        _names(root, "src/dangling")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """Pipes, sockets and devices, found and named."""
    _files(tmp_path, {"src/a.py": ""})
    os.mkfifo(tmp_path / "src/pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(tmp_path / "src")
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
        with pytest.raises(ConfigError, match=r"src/pipe: a named pipe\n  src/socket: a socket"):
            _names(tmp_path, "src")
    with pytest.raises(ConfigError, match=r"names '.*src/pipe', which is a named pipe, not a file"):
        _names(tmp_path, "src/pipe")
    with pytest.raises(ConfigError, match=r"names '/dev/null', which is a device"):
        _names(tmp_path, "/dev/null")


@pytest.mark.parametrize(("method", "name"), [("read_bytes", "data"), ("iterdir", "in"), ("stat", "data")])
def test_what_cannot_be_read_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, name: str
) -> None:
    """A file and a folder without permission are named, with the reason."""
    _files(tmp_path, {"src/a.py": "", "src/data": "x", "src/in/b.py": ""})
    real = getattr(Path, method)

    def denied(path: Path, **given: Any) -> Any:
        if path.name == name and not given:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **given)

    monkeypatch.setattr(Path, method, denied)
    if method == "stat":  # a folder that lists its files but lets nobody at them
        monkeypatch.setattr(Path, "is_dir", lambda path: path.name in ("src", "in"))
    with pytest.raises(ConfigError, match=rf"src/{name} cannot be sent .* Permission denied\. Make it readable"):
        _names(tmp_path, "src")


def test_much_is_told_with_the_largest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Over 50 MB or 10,000 files: one line with the ten largest; over 100,000 files: an error with the folders."""
    _files(tmp_path, {f"src/data/{n:02}": "" for n in range(12)})
    for n in range(12):
        os.truncate(tmp_path / f"src/data/{n:02}", n * 10**6)
    with caplog.at_level(logging.WARNING):
        _names(tmp_path, "src")
    (line,) = caplog.messages
    assert "takes 12 files of 66 MB; the largest are src/data/11 (11 MB), src/data/10 (10 MB)" in line
    assert "src/data/02" in line
    assert "src/data/01" not in line
    caplog.clear()
    monkeypatch.setattr(included, "_MANY_FILES", 2)
    _names(tmp_path, "src", excludes=("src/data/[01][1-9]", "src/data/10"))
    assert caplog.messages == []
    monkeypatch.setattr(included, "_SAY_AFTER_S", -1)
    monkeypatch.setattr(included, "_MOST_FILES", 11)
    with pytest.raises(ConfigError, match=r"More than 11 files .* most are in: src/data \(12\)"):
        _names(tmp_path, "src")
    assert caplog.messages == ["looking for the files of Image(includes=...): 1 so far"]


def test_paths_as_people_write_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute, with `..`, `~`, slashes, spaces, other letters, bytes that are no text, and patterns."""
    home, root = tmp_path / "home", tmp_path / "a [b] ü"
    _files(home, {"own/h.py": ""})
    _files(root, {"my src/ä.py": "", "my src/b.py": "", "my src/.env": "", "src[1]/c.py": "", "x/y/d.py": ""})
    (root / "x" / os.fsdecode(b"\xff.py")).write_text("")
    monkeypatch.setenv("HOME", str(home))
    assert _names(root, "~/own") == ["own/h.py"]
    assert _names(root, str(root / "x/y")) == ["x/y/d.py"]
    assert _names(root, "x/../x/y//") == ["x/y/d.py"]
    assert _names(root / "x", "../x/y") == ["y/d.py"] or _names(root / "x", "../x/y") == ["x/y/d.py"]
    assert _names(root, "my src/*.py") == ["my src/b.py", "my src/ä.py"]
    assert _names(root, "**/d.py", "src[1]") == ["src[1]/c.py", "x/y/d.py"]
    assert _names(root, "x") == ["x/y/d.py", os.fsdecode(b"x/\xff.py")]
    with pytest.raises(ConfigError, match=r"names '\*\.csv', which does not exist in"):
        _names(root, "*.csv")
    with pytest.raises(ConfigError, match=r"names '/', the whole file system"):
        _names(root, "/")
    with pytest.raises(ConfigError, match=r"There is .*/a \[b\] ü/my src, but relative paths start from .*/x/y"):
        _names(root / "x/y", "my src")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(root / "x/main.py"), raising=False)
    with pytest.raises(ConfigError, match=r"names 'y', which does not exist in .*There is .*/x/y"):
        _names(home, "y")


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    """What is outside of the root keeps its last name, which two files may share."""
    _files(tmp_path, {"one/lib/a.py": "1", "two/lib/a.py": "2", "root/x": ""})
    with pytest.raises(ConfigError, match=r"two files that would both be 'lib/a.py' on nodes: .*one.*two"):
        _names(tmp_path / "root", "../one/lib", "../two/lib")


def test_a_project_keeps_its_credentials(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a local project is built of has no credentials; ignored files stay, and LICENSE may be a link from above."""
    project = tmp_path / "project"
    _files(tmp_path, {"LICENSE": "x"})
    _files(project, {".gitignore": "_version.py\n", "lib/_version.py": "", ".env": "A=1", "lib/key.pem": KEY})
    (project / "LICENSE").symlink_to("../LICENSE")
    assert [name for name, _ in project_files(project, ())] == [".gitignore", "LICENSE", "lib/_version.py"]
    (line,) = caplog.messages
    assert "2 entries of the project" in line
    assert ".env: it seems to hold credentials" in line
