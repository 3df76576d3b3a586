"""The standard library's futures and thread pools, in a separate module because their import takes milliseconds."""

from concurrent.futures import FIRST_EXCEPTION as FIRST_EXCEPTION
from concurrent.futures import CancelledError as CancelledError
from concurrent.futures import Future as Future
from concurrent.futures import InvalidStateError as InvalidStateError
from concurrent.futures import ThreadPoolExecutor as ThreadPoolExecutor
from concurrent.futures import TimeoutError as TimeoutError  # noqa: A004
from concurrent.futures import wait as wait
