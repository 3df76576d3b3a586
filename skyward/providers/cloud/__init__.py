"""Machines rented from a cloud for one pool: everything that does not depend on which cloud it is."""
