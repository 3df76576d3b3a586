"""A program of image builds: makes /opt/venv of the Python that runs it; with "keep", adds to the one that is there.

A virtual environment of a virtual environment's Python is one of the Python below that. So the packages of the latter
are added by a .pth file, behind the new one's own, which come first; `addsitedir` heeds .pth files there in turn, as of
editable installs. So are those that root has installed for itself, whom nodes do not run as.
"""

import importlib.util
import os
import site
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

TARGET = Path("/opt/venv")
PACKAGES = ("purelib", "platlib")


def make(*, keep: bool) -> None:
    """Make the environment, which sees the packages that this Python sees, unless it is there to be kept."""
    inner = sys.prefix != sys.base_prefix
    if not keep:
        seen = (
            not inner or "include-system-site-packages = true" in (Path(sys.prefix) / "pyvenv.cfg").read_text().lower()
        )
        venv.create(TARGET, system_site_packages=seen, clear=True, symlinks=True)
        # some distributions have ensurepip, or what it installs, in packages of their own; nothing of ours needs pip
        if importlib.util.find_spec("ensurepip"):
            words = ["-I", "-m", "ensurepip", "--upgrade", "--default-pip"]
            subprocess.run([str(TARGET / "bin/python"), *words], check=False, stdout=subprocess.DEVNULL)
    folders = [*(dict.fromkeys(sysconfig.get_path(name) for name in PACKAGES) if inner else ()), *roots_own()]
    if folders:
        lib = TARGET / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        lines = [f"import site; site.addsitedir({folder!r})\n" for folder in folders]
        (lib / "skyward_base.pth").write_text("".join(lines))


def roots_own() -> list[str]:
    """The folder of packages that were installed for root alone, if this Python sees it and there are any."""
    folder = site.getusersitepackages() if site.ENABLE_USER_SITE else ""
    return [folder] if folder and Path(folder).is_dir() and any(Path(folder).iterdir()) else []


def let_pass(path: Path) -> None:
    """Let every user pass the directories that lead to a path: there are Pythons below /root as well."""
    for each in (path, *path.parents[:-1]):
        if each.is_dir() and not (mode := each.stat().st_mode) & 0o001:
            each.chmod(mode | 0o011)


def let_read(whole: Path) -> None:
    """Let every user read a file, or what a folder holds, which may have been made under a umask of 077."""
    held = (Path(place, name) for place, folders, names in os.walk(whole) for name in (*folders, *names))
    for path in (whole, *held):
        mode = path.lstat().st_mode
        wanted = mode | (mode & 0o700) >> 3 & 0o055 | (mode & 0o700) >> 6 & 0o005
        if wanted != mode and not path.is_symlink():
            path.chmod(wanted & 0o7777)


def of_python() -> list[str]:
    """Return the files of this Python: programs and libraries below its own prefix, or in /usr what belongs to it."""
    if sys.base_prefix not in ("/", "/usr", "/usr/local"):
        return [sys.executable, *(str(Path(sys.base_prefix, name)) for name in ("bin", "lib"))]
    library = [sysconfig.get_config_var(name) for name in ("LIBDIR", "INSTSONAME")]
    shared = [str(Path(*library))] if all(library) else []
    return [sys.executable, *shared, *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))]


if __name__ == "__main__":
    if Path(sys.prefix) != TARGET:
        make(keep="keep" in sys.argv[1:])
    inner = [sys.prefix] if sys.prefix != sys.base_prefix else []
    own = [sysconfig.get_path(name) for name in PACKAGES]
    for used in dict.fromkeys([*of_python(), *inner, *own, *roots_own(), str(TARGET)]):
        path = Path(os.path.realpath(used))
        if path.exists():
            let_pass(path)
            let_read(path)
