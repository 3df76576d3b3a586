"""`skyward build` of images that are there, as whole processes, beside a bare interpreter and an import; as JSON.

make engine
set -a; . .engine/env; set +a
python benchmarks/noop.py

"without a record" is the compiler at work; the others find the record of an earlier run. With SKYWARD_REGISTRY, as
`make engine` sets it, an image is pushed as well.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from skyward.builder.packages.lock import find_uv

RUNS = 9
SCRIPT = """
import skyward as sky

IMAGE = sky.Image(pip=["six"])


@sky.compute
def double(x):
    return 2 * x


if __name__ == "__main__":
    with sky.ComputePool(nodes=2, image=IMAGE) as pool:
        print(double(1) >> pool)
"""


FILES = {
    "image.toml": 'run = ["true"]\n',
    "train.py": SCRIPT,
    "includes.toml": 'includes = ["src"]\nbake = true\n',
    **{f"src/module_{number}.py": f"VALUE = {number}\n" for number in range(50)},
    "local.toml": 'pip = ["./lib"]\n',
    "lib/pyproject.toml": '[project]\nname = "lib"\nversion = "1"\n',
    "lib/lib.py": "VALUE = 1\n",
    "project/pyproject.toml": '[project]\nname = "project"\nversion = "1"\nrequires-python = ">=3.11"\n'
    "[tool.uv]\npackage = false\n",
}
BUILDS = {
    "image.toml": ["image.toml"],
    "train.py": ["train.py"],
    "includes.toml, 50 files": ["includes.toml"],
    "local.toml, a local package": ["local.toml"],
    "project, by its uv.lock": ["project"],
    "image.toml --check": ["image.toml", "--check"],
    "image.toml --json": ["image.toml", "--json"],
}


def main() -> None:
    """Print milliseconds: best, median and worst of each command, and what its best is beyond that of the import."""
    registry = os.environ.get("SKYWARD_REGISTRY")
    builds = BUILDS | ({"image.toml --push": ["image.toml", "--push", f"{registry}/noop"]} if registry else {})
    with TemporaryDirectory() as name:
        folder = Path(name)
        for path, text in FILES.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        subprocess.run([find_uv(), "lock", "--quiet", "--offline"], cwd=folder / "project", check=True)
        environ = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
        build = [sys.executable, "-m", "skyward", "build"]
        commands = {
            "python -c ''": [sys.executable, "-c", ""],
            "import skyward": [sys.executable, "-c", "import skyward"],
            "build image.toml, without a record": [*build, "./image.toml", "--print"],
            **{f"build {title}": [*build, *words] for title, words in builds.items()},
        }
        for words in [each for each in builds.values() for _ in range(3)]:  # built, used, recorded
            subprocess.run([*build, *words], cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL)
            time.sleep(0.2)  # what has only just been changed is not recorded
        times: dict[str, list[float]] = {title: [] for title in commands}
        for _ in range(RUNS):  # in turn, as other work on the machine comes and goes
            for title, command in commands.items():
                started = time.perf_counter()
                subprocess.run(command, cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL)
                times[title].append((time.perf_counter() - started) * 1000)
    base = min(times["import skyward"])
    figures = {
        title: {
            "best_ms": round(min(each), 1),
            "median_ms": round(statistics.median(each), 1),
            "worst_ms": round(max(each), 1),
            "best_beyond_import_ms": round(min(each) - base, 1),
        }
        for title, each in times.items()
    }
    print(json.dumps({"runs": RUNS, "cores": os.cpu_count(), "load": os.getloadavg()[0], "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
