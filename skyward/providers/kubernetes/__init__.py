"""Nodes as pods of a Kubernetes cluster, `sky.Kubernetes`: one pod per node, and one Secret that owns all of a pool."""
