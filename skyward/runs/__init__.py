"""Runs of programs: where their records and journals are, and how to read them."""

DOWN_FILE = "down"  # in a run's directory: `skyward down` has asked the run to end
ENDED_BY_DOWN = "ended by `skyward down`"  # prefix of the reason for the end of such a run
