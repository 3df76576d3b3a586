"""Machines reached by SSH: the `connection`, the `watchdog` that runs on the machine, and the checks of hosts."""
