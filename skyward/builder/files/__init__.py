"""The user's files in an image: which are taken, their digests, and their copies in the build context.

Read `copied.py` first; `included.py` searches folders by the rules of `ignore_files.py` and `credential_files.py`.
`digest.py` hashes files, `runner.py` lists skyward's own.
"""
