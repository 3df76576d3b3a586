"""Settings of this site: package indexes, mirrors, logins and certificates.

`indexes.py` reads them from pip's and uv's settings and the index map; `settings.py` hands them to uv here, and to the
steps of a build as one script in a secret mount.
"""
