"""Machines reached by SSH: the `connection`, the `watchdog` at its other end, and the checks of a host."""
