"""`make stand`: three Docker hosts on one Linux machine, each with a network, a root, an sshd and an engine of its own.

Imports the standard library and `scripts.engine` only.
"""
