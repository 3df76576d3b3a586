"""Nodes as tasks of a Docker Swarm service, `sky.Swarm`: the engine places them and replaces those that are lost."""
