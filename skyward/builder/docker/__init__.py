"""Running builds: the docker command, its progress, and the diagnosis of failures.

Read `build.py` first: it writes the context and runs the command that `command.py` selects, here or on another machine.
`output.py` parses its output and explains failures; `live.py` shows it on a terminal.
"""
