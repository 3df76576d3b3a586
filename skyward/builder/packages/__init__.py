"""Python packages: from an image's requirements to a lock of exact versions and hashes.

In order: `requirements.py` collects the requirements from `pip_files.py`, `project.py`, `pylock.py` and from the
metadata of packages (`metadata.py`); `lock.py` returns their lock, following the rules of the user's files, from its
cache or through `resolver.py`. `lock_file.py` defines the file that a team commits.
"""
