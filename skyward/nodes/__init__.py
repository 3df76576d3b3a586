"""Nodes on their hosts: started as a container or process, ready, reached, ended. Begin with `node`."""
