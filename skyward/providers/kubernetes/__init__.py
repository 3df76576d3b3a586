"""Nodes as pods of a Kubernetes cluster, `sky.Kubernetes`: one pod per node; one Secret owns a pool's objects."""
