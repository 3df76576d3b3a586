"""The settings of this site: package indexes, mirrors, certificates.

`settings.py` makes one script of them, which each build step reads from a secret mount. It takes the indexes from
`indexes.py` (pip, uv, the index map, the keyring); `index_server.py` serves local folders.
"""
