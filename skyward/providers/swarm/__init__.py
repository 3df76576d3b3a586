"""`sky.Swarm`: nodes as tasks of a Docker Swarm service, which the engine places and replaces when they are lost."""
