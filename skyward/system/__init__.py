"""The standard library's time, threads, locks, queues and sockets, imported from one place.

In production these names are the standard library itself. A simulation of a pool replaces this package before it
imports any other module of skyward, and so controls the time, the scheduling of threads and the behaviour of sockets.
For that, `_pool`, `runner`, `wire` and `providers` do not import these modules themselves; a test enforces it.
"""

import select as select
import socket as socket
import threading as threading
import time as time
from queue import Empty as Empty
from queue import Full as Full
from queue import Queue as Queue
from queue import SimpleQueue as SimpleQueue
