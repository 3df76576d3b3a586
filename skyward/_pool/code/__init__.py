"""Transfer of the user's code and arguments to nodes: functions, local modules, shared large arguments."""
