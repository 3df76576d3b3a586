"""`make engine`: a Docker engine, a registry and a base image for this clone, on a machine that may have none.

Runs before anything is installed, so it imports the standard library only.
"""
