"""The user's files in an image: which are taken, their digests, and their copies in the build context.

Read `copied.py` first, which lists skyward's own files as well, and hashes files; `included.py` searches folders by the
rules of `left_out.py`.
"""
