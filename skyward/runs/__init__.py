"""Runs of programs: where their records and journals are, and how to read them."""

ENDED_BY_DOWN = "ended by `skyward down`"  # prefix of the reason for the end of such a run
