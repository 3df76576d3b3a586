"""Run a function on machines that exist only while the pool is open.

python examples/guides/01_hello.py                      # two containers on this machine
python examples/guides/01_hello.py --provider local     # two plain processes
"""

from __future__ import annotations

import platform

from provider import pool_options

import skyward as sky


@sky.compute
def greet(name: str) -> str:
    info = sky.instance_info()  # None outside a pool
    where = f"node {info.node} of {info.total_nodes}" if info else "this process"
    print(f"hello {name}, this is {where}")  # printed there, shown here
    return f"{where}: Python {platform.python_version()} on {platform.node()}"


def main() -> None:
    with sky.ComputePool(**pool_options(__doc__)) as pool:
        print(greet("one") >> pool)  # on one node
        for line in greet("all") @ pool:  # on every node, in node order
            print(line)
        later = greet("later") > pool  # in the background
        print(later.result())
    print(greet.local("nobody else"))  # without any pool


if __name__ == "__main__":
    main()
