"""Python packages: from an image's requirements to a lock of exact versions and hashes.

In order: `requirements.py` collects what is asked for, from `pip_files.py`, `project.py`, `pylock.py`, and from what
packages say of themselves (`metadata.py`); `lock.py` answers, heeding the rules of the user's files, from its cache or
by `resolver.py`. `lock_file.py` is the file that a team commits.
"""
