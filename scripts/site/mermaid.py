"""The script that draws the diagrams of the site, from the npm registry once, kept in the user's cache directory."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import tarfile
import tempfile
from pathlib import Path

from platformdirs import user_cache_path

VERSION = "11.17.2"
# of the package, as npm writes it
INTEGRITY = "sha512-V6K3C8EBdEsPFZXSKMJe6ppQOENxuHARr9GvHX4hh47lAbhMRD9qf4oEK7LoaRQxULMa80/qt5gHO73aCleBBg=="
_MEMBER = "package/dist/mermaid.min.js"
_FETCH_S = 300


def script() -> Path:
    """The file of the script; npm fetches the package when it is asked for the first time.

    Raises:
        SystemExit: npm is missing or fails, or what it fetched is not the package of this version.
    """
    kept = user_cache_path("skyward") / "site" / f"mermaid-{VERSION}.min.js"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            (Path(folder) / kept.name).write_bytes(_fetch(Path(folder)))
            (Path(folder) / kept.name).replace(kept)
    return kept


def _fetch(folder: Path) -> bytes:
    command = ["npm", "pack", "--silent", f"mermaid@{VERSION}", "--pack-destination", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_S, check=False)
    except FileNotFoundError:
        raise SystemExit("docs: npm is needed once, to fetch mermaid, which draws the diagrams. Install npm.") from None
    if done.returncode != 0:
        raise SystemExit(f"docs: `{' '.join(command)}` failed: {done.stderr.strip()}")
    package = folder / f"mermaid-{VERSION}.tgz"
    found = "sha512-" + base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
    if found != INTEGRITY:
        raise SystemExit(f"docs: mermaid {VERSION} from npm has the digest {found}, and {INTEGRITY} is expected.")
    with tarfile.open(package) as archive:
        member = archive.extractfile(_MEMBER)
        if member is None:
            raise SystemExit(f"docs: mermaid {VERSION} has no {_MEMBER}.")
        return member.read()
