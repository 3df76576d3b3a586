"""The program of test_debugging.py: `python debugged.py NAME [HOST KEY KNOWN_HOSTS]` runs a scene."""

from __future__ import annotations

import sys
import time

import skyward as sky


@sky.compute
def double(x: int) -> int:
    y = x + 1
    breakpoint()
    z = y * 2
    print("z is", z)
    return z


@sky.compute
def by_module(x: int) -> int:
    import pdb

    pdb.set_trace()
    return x


@sky.compute
def name_of(x: int) -> str:
    return input("name? ") + str(x)


@sky.compute
def tick(count: int) -> None:
    for number in range(count):
        print("tick", number)
        time.sleep(0.05)


@sky.compute
def sleeping() -> str:
    breakpoint()
    time.sleep(3600)
    return "awake"


@sky.compute(timeout=2.0)
def limited() -> str:
    breakpoint()
    return "in time"


@sky.compute
def quits() -> None:
    import os

    breakpoint()
    os._exit(7)


@sky.compute
def fail_later() -> None:
    time.sleep(2)
    raise ZeroDivisionError("of the other call")


@sky.compute
def divide(x: int) -> float:
    over = 10
    return over / x


def main(scene: str, *host: str) -> None:  # noqa: C901 - a table of scenes
    if scene == "local":
        print("result", sky.debug(divide(0)))
        return
    slots = 2 if scene == "slots" else 1
    provider: sky.Docker | sky.Local | sky.SSH = sky.Docker() if scene == "docker" else sky.Local()
    if host:
        provider = sky.SSH(host[0], key=host[1], known_hosts=host[2])
    with sky.ComputePool(provider, nodes=1 if slots == 2 else 2, concurrency=slots) as pool:
        if scene in {"one", "docker"}:
            print("result", double(3) >> pool)
        elif scene in {"two", "slots"}:
            print("results", (double(3) & double(4)) >> pool)
        elif scene == "stopped":
            print("results", (double(3) & fail_later()) >> pool)
        elif scene == "bare":
            for call in (double(3), by_module(3), name_of(3)):
                try:
                    print("result", call >> pool)
                except sky.errors.TerminalError as error:
                    print(f"TerminalError: {error}")
        elif scene == "module":
            print("result", by_module(3) >> pool)
        elif scene == "input":
            print("result", name_of(3) >> pool)
        elif scene == "others":
            ticks = tick(20) > pool
            print("result", double(3) >> pool)
            ticks.result()
        elif scene == "sleeping":
            print("result", sleeping() >> pool)
        elif scene == "limited":
            print("result", limited() >> pool)
        elif scene == "lost":
            print("result", quits() >> pool)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (sky.errors.SkywardError, EOFError, ZeroDivisionError) as error:
        print(f"{type(error).__name__}: {error}")
