"""The user's files in an image: their selection, their digests, and their copies in the build context.

Read `copied.py` first, which also lists skyward's own files and hashes files; `included.py` searches folders.
"""
