"""Nodes in the containers of a compose file, `sky.Compose`: brought up by the pool, or taken while they are up."""
