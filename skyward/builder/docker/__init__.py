"""Running builds: the docker command, its progress, and the diagnosis of failures.

Read `build.py` first: it writes the context and runs the command that `command.py` chooses, as a process
(`process.py`), here or on another machine. Output is read by `progress.py` and shown by `live.py`;
`failure.py` explains failures.
"""
