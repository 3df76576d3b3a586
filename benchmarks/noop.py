"""`skyward build` of images that are there, as whole processes, beside a bare interpreter and an import; as JSON.

make engine
set -a; . .engine/env; set +a
python benchmarks/noop.py

"without a record" is the compiler at work (`--check`); the others find the record of an earlier run.
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


def main() -> None:
    """Print milliseconds: best, median and worst of each command, and what its best is beyond that of the import."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "image.toml").write_text('pip = ["six"]\n')
        (folder / "train.py").write_text(SCRIPT)
        environ = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
        build = [sys.executable, "-m", "skyward", "build"]
        commands = {
            "python -c ''": [sys.executable, "-c", ""],
            "import skyward": [sys.executable, "-c", "import skyward"],
            "build image.toml, without a record": [*build, "./image.toml", "--check"],
            "build image.toml": [*build, "image.toml"],
            "build train.py": [*build, "train.py"],
        }
        for words in (["image.toml"], ["image.toml"], ["train.py"], ["train.py"]):
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
