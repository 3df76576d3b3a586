"""Machines rented from a cloud for one pool: the code that is common to all clouds."""
