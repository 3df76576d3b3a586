"""Runs of programs: where their records and journals are, and how they are read from there."""

DOWN_FILE = "down"  # in a run's directory: `skyward down` has asked it to end
ENDED_BY_DOWN = "ended by `skyward down`"  # begins the reason for the end of such a run
