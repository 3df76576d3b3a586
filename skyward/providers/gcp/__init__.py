"""Google's Compute Engine: its API, machine types, prices and network, for the common code of `providers/cloud`."""
