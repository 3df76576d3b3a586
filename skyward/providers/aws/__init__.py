"""EC2: its API, catalogue, network and machine images, for the common code of `providers/cloud`."""
