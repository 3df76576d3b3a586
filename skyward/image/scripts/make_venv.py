"""A program of image builds: makes /opt/venv of the Python that runs it.

A virtual environment of a virtual environment's Python is one of the Python below that. So the packages of the latter
are added by a .pth file, behind the new one's own, which come first; `addsitedir` heeds .pth files there in turn, as of
editable installs.
"""

import importlib.util
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

TARGET = Path("/opt/venv")


def make() -> None:
    """Make the environment, which sees the packages that this Python sees."""
    inner = sys.prefix != sys.base_prefix
    seen = not inner or "include-system-site-packages = true" in (Path(sys.prefix) / "pyvenv.cfg").read_text().lower()
    venv.create(TARGET, system_site_packages=seen, clear=True, symlinks=True)
    # some distributions have ensurepip, or what it installs, in packages of their own; nothing of ours needs pip
    if importlib.util.find_spec("ensurepip"):
        words = ["-I", "-m", "ensurepip", "--upgrade", "--default-pip"]
        subprocess.run([str(TARGET / "bin/python"), *words], check=False, stdout=subprocess.DEVNULL)
    if inner:
        folders = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
        lib = TARGET / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        lines = [f"import site; site.addsitedir({folder!r})\n" for folder in folders]
        (lib / "skyward_base.pth").write_text("".join(lines))


def let_pass(path: Path) -> None:
    """Let every user pass the directories that lead to a path: there are Pythons below /root as well."""
    for each in (path, *path.parents[:-1]):
        mode = each.stat().st_mode
        if each.is_dir() and not mode & 0o001:
            each.chmod(mode | 0o011)


if __name__ == "__main__":
    if Path(sys.prefix) != TARGET:
        make()
    for used in {sys.prefix, sys.base_prefix, sys.executable, sysconfig.get_path("stdlib")}:
        let_pass(Path(os.path.realpath(used)))
