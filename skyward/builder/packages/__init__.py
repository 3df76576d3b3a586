"""Python packages: from an image's requirements to a lock of exact versions and hashes.

In order: `requirements.py` collects the requirements from `requirement_files.py`, `project.py` and `local.py`;
`lock.py` returns their lock, following the rules of the user's files, from its cache or through `resolver.py`, which
runs uv and reads its `pylock.toml`. `lock_file.py` defines the file that a team commits.
"""
