"""Python packages: from an image's requirements to a lock of exact versions and hashes.

In order: `requirements.py` collects what is asked for (from `pip_files.py`, `project.py`, `pylock.py` and `local.py`)
and the `rules.py` of the user's files; `lock.py` answers from its cache or by `resolver.py`; `build_system.py` finds
what source packages take to be built, `extras.py` checks extras. `lock_file.py` is the file that a team commits.
"""
