"""`make kube`: a Kubernetes of two nodes on one Linux machine, built from Debian's sources; kubelets on containerd.

Imports the standard library, `scripts.engine` and `scripts.stand` only: its nodes are wired as the stand's hosts are.
"""
