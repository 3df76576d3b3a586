"""Which files `Image(includes=...)` takes: nothing secret, ignored or outside of it without a word."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from skyward.builder.events import warn
from skyward.builder.files.included import included_files, project_files
from skyward.errors import ConfigError
from skyward.model.image import DEFAULT_EXCLUDES

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n"


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    warn.cache_clear()


def _files(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def _names(root: Path, *includes: str, excludes: tuple[str, ...] = DEFAULT_EXCLUDES) -> list[str]:
    return list(included_files(includes, excludes, root))


SECRETS = {
    **dict.fromkeys([".env", ".env.production", "prod.env", ".aws/credentials", ".ssh/config", ".kube/config"], "x"),
    **dict.fromkeys(["kubeconfig", "id_rsa", "deploy/ID_ED25519", "server.key", "store.p12", ".netrc", ".pypirc"], "x"),
    **dict.fromkeys([".git-credentials", ".npmrc", "pip.conf", "secrets.toml"], "x"),
    "server.pem": CERTIFICATE + KEY,
    "deploy_key": KEY,
    "robot.json": '{"private_key": "-----BEGIN PRIVATE KEY-----"}',
}


@pytest.mark.parametrize("name", SECRETS)
def test_credentials_are_taken_only_by_name(tmp_path: Path, name: str) -> None:
    """A file that looks like credentials is refused, with its name and the ways out; named or left out, it is not."""
    _files(tmp_path, {f"src/{name}": SECRETS[name], "src/a.py": ""})
    with pytest.raises(ConfigError) as refused:
        _names(tmp_path, "src")
    assert f"src/{name}: it seems to hold credentials" in str(refused.value)
    assert f"includes=[..., 'src/{name}']" in str(refused.value)
    assert _names(tmp_path, "src", f"src/{name}") == sorted(["src/a.py", f"src/{name}"])
    assert _names(tmp_path, "src", excludes=(f"src/{name}",)) == ["src/a.py"]


def test_ordinary_files_are_taken(tmp_path: Path) -> None:
    """Certificates, public keys, examples and code are no credentials."""
    names = [".env.example", "ca.pem", "example.env", "id_rsa.pub", "keys.py", "secrets.py"]
    _files(tmp_path, dict.fromkeys(names, "") | {"ca.pem": CERTIFICATE, "keys.py": f'KEY = """\n{KEY}"""'})
    assert _names(tmp_path, ".") == names


GIT_PATTERNS = {
    ".gitignore": "*.log\n!keep.log\n/only_top.txt\nbuild/\ndocs/**/draft\n# no\n\\#odd\nspace\\ \n*.tmp  \n/final\n",
    "src/.gitignore": "!special.log\n*.csv\nsub/*\n!sub/keep.py\ndeep/\n!deep/kept.py\n",
    "src/sub/.gitignore": "!again.txt\n",
}
GIT_TREE = [
    *("a.log", "keep.log", "only_top.txt", "#odd", "space ", "a.tmp", "final"),
    *("src/a.py", "src/a.log", "src/special.log", "src/only_top.txt", "src/t.csv", "src/build/x.py", "src/build.py"),
    *("src/sub/keep.py", "src/sub/lost.py", "src/sub/again.txt", "src/deep/kept.py", "src/é ü/x.py", "src/é ü/x.csv"),
    *("docs/draft", "docs/a/b/draft", "docs/a/draft/x.py", "docs/final"),
]
GIT_KEEPS = [
    *(".gitignore", "docs/final", "keep.log", "src/.gitignore", "src/a.py", "src/build.py", "src/only_top.txt"),
    *("src/special.log", "src/sub/again.txt", "src/sub/keep.py", "src/é ü/x.py"),
]


def test_ignore_files_are_read_as_git_reads_them(tmp_path: Path) -> None:
    """Nested files, exceptions, anchors, folders: the same files as `git ls-files` would add."""
    _files(tmp_path, {**dict.fromkeys(GIT_TREE, ""), **GIT_PATTERNS})
    git = shutil.which("git")
    if git:
        subprocess.run([git, "init", "-q"], cwd=tmp_path, check=True)
        words = [git, "-c", "core.excludesFile=", "ls-files", "-zo", "--exclude-standard"]
        listed = subprocess.run(words, cwd=tmp_path, check=True, capture_output=True).stdout.decode()
        assert sorted(listed.strip("\0").split("\0")) == GIT_KEEPS
    assert _names(tmp_path, ".") == GIT_KEEPS
    assert _names(tmp_path, "src") == [name for name in GIT_KEEPS if name.startswith("src/")]
    assert _names(tmp_path / "src", ".") == [name[4:] for name in GIT_KEEPS if name.startswith("src/") and git]


def test_a_docker_ignore_file_holds_for_its_folder(tmp_path: Path) -> None:
    """That of the root and that of the included folder, with exceptions and paths as Docker has them."""
    _files(tmp_path, {".dockerignore": "# no\nsrc/data\n**/*.bin\n", "src/.dockerignore": "*\n!a.py\n!in/b.py\n"})
    _files(tmp_path, dict.fromkeys(["src/a.py", "src/x.bin", "src/data/d.py", "src/in/b.py", "src/in/c.py"], ""))
    assert _names(tmp_path, "src") == ["src/a.py", "src/in/b.py"]
    assert "src/data/d.py" in _names(tmp_path, "src/data")
    assert "src/x.bin" in _names(tmp_path, "src", "src/x.bin")


def test_what_is_named_is_taken(tmp_path: Path) -> None:
    """Ignored files and folders, if they are named; it is an error if nothing is left of a folder."""
    _files(tmp_path, {".gitignore": "gen/\n*_pb2.py\n", "gen/a.py": "", "src/x_pb2.py": "", "src/a.py": ""})
    assert _names(tmp_path, "gen", "src", "src") == ["gen/a.py", "src/a.py"]
    assert _names(tmp_path, "src", "src/x_pb2.py") == ["src/a.py", "src/x_pb2.py"]
    _files(tmp_path, {"out/.gitignore": "*", "out/a.py": "", ".venv/a.py": ""})
    for name in ("out", ".venv"):
        with pytest.raises(ConfigError, match=r"but all its files are left out by excludes=\[...\], \.gitignore"):
            _names(tmp_path, name, excludes=("**/.venv/**",))
    (tmp_path / "empty").mkdir()
    assert _names(tmp_path, "empty") == []


def test_links_are_followed_inside_only(tmp_path: Path) -> None:
    """Cycles end; what leads out is refused, unless it is named."""
    root, outside = tmp_path / "project", tmp_path / "outside"
    _files(root, {"src/pkg/__init__.py": "", "top.txt": "top"})
    _files(outside, {"note.txt": "x", "pkg/o.py": ""})
    for name, target in (("alias", "pkg"), ("pkg/again.py", "__init__.py"), ("pkg/up", ".."), ("gone", "nowhere")):
        (root / "src" / name).symlink_to(target)
    inside = ["alias/__init__.py", "alias/again.py", "pkg/__init__.py", "pkg/again.py"]
    assert _names(root, "src") == [f"src/{name}" for name in inside]
    for name, path in (("file", outside / "note.txt"), ("folder", outside / "pkg"), ("up", root / "top.txt")):
        link = root / "src" / name
        link.symlink_to(path)
        with pytest.raises(ConfigError, match=rf"src/{name}: a link that leads out, to {path}"):
            _names(root, "src")
        named = f"src/{name}/o.py" if path.is_dir() else f"src/{name}"
        assert named in _names(root, "src", f"src/{name}")
        link.unlink()
    (root / "src/innocent").symlink_to(_files(root, {"src/.x/.ssh/y": ""}) / "src/.x/.ssh/y")
    with pytest.raises(ConfigError, match="src/innocent: it seems to hold credentials"):
        _names(root, "src", "src/.x/.ssh/y")


def test_what_is_no_readable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipes and devices, found and named; a folder without permission is named, with the reason."""
    _files(tmp_path, {"src/a.py": ""})
    os.mkfifo(tmp_path / "src/pipe")
    for include, name in (("src", "src/pipe"), ("src/pipe", "src/pipe"), ("/dev/null", "null")):
        with pytest.raises(ConfigError, match=f"{name}: it is not a regular file"):
            _names(tmp_path, include)

    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(ConfigError, match=r"src cannot be sent .* Permission denied\. Make it readable"):
        _names(tmp_path, "src")


def test_large_files_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Over 50 MB, a warning names the ten largest."""
    _files(tmp_path, {f"src/data/{n:02}": "" for n in range(12)})
    for n in range(12):
        os.truncate(tmp_path / f"src/data/{n:02}", n * 10**6)
    _names(tmp_path, "src")
    (line,) = caplog.messages
    assert "takes 12 files of 66 MB; the largest are src/data/11 (11 MB), src/data/10 (10 MB)" in line
    assert "src/data/02" in line
    assert "src/data/01" not in line


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
    assert _names(root, "my src/*.py") == ["my src/b.py", "my src/ä.py"]
    assert _names(root, "**/d.py", "src[1]") == ["src[1]/c.py", "x/y/d.py"]
    assert _names(root, "x") == ["x/y/d.py", os.fsdecode(b"x/\xff.py")]
    with pytest.raises(ConfigError, match=r"names '\*\.csv', but .*csv does not exist"):
        _names(root, "*.csv")
    with pytest.raises(ConfigError, match=r"names '/', the whole file system"):
        _names(root, "/")


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
