"""Base images: what they contain, and whether nodes can run on them.

`inspection.py` reads an image's configuration and files, `facts.py` caches the result and checks it, `dockerfile.py`
names a base that is built from the user's own Dockerfile.
"""
