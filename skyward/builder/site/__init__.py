"""Settings of this site: package indexes, mirrors and certificates.

`settings.py` turns them into one script, which each build step reads from a secret mount. It takes the indexes from
`indexes.py` (pip, uv, the index map, the keyring); `index_server.py` serves local folders.
"""
