"""Nodes as tasks of a Docker Swarm service: the cluster's own engine places them, feeds them and starts them again."""
