"""The calls of test_debugging.py."""

from __future__ import annotations

import skyward as sky


@sky.compute
def double(x: int) -> int:
    """Stop, and print."""
    y = x + 1
    breakpoint()
    z = y * 2
    print("z is", z)
    return z


@sky.compute
def asks() -> str:
    """Read a line, which no call can."""
    return input("name? ")


@sky.compute
def fail_later() -> None:
    """Stop at a breakpoint that nobody looks at, or fail on the second rank."""
    info = sky.instance_info()
    assert info
    if info.node == 0:
        breakpoint()
    raise ZeroDivisionError("of the other call")


@sky.compute
def divide(x: int) -> float:
    """Fail where x is 0."""
    over = 10
    return over / x


if __name__ == "__main__":
    try:
        sky.debug(divide(0))
    except ZeroDivisionError as error:
        print(f"ZeroDivisionError: {error}")
