"""Google's Compute Engine: its API, machine types, prices and network, for the generic code of `providers/cloud`."""
