"""EC2: its API, catalogue, network and machine images, for the generic code of `providers/cloud`."""
