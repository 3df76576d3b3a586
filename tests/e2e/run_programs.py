"""Programs for detached runs: they are started as files, and open their own pools."""

PRINTING = """
import json
import os
import sys
import time
from pathlib import Path

import skyward as sky
from beside import CALLS


@sky.compute
def work(number):
    print(f"begin {number}", flush=True)
    time.sleep(0.2)
    print(f"end {number}", flush=True)
    return number * number


if __name__ == "__main__":
    with sky.ComputePool(PROVIDER, nodes=2, concurrency=4) as pool:
        print("arguments", json.dumps(sys.argv[1:]), flush=True)
        results = pool.map(work, range(CALLS), journal="work.journal")
    folder = Path(os.environ["SKYWARD_RUN"])
    (folder / "results.json").write_text(json.dumps(results))
    sky.save("squares", list(results))
    (sky.output_folder() / "squares.txt").write_text(str(len(results)))
    print("token", os.environ.get("RUN_TEST_TOKEN"), file=sys.stderr)
"""
