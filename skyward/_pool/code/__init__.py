"""The user's code and arguments on their way to nodes: functions, local modules, large arguments sent once."""
