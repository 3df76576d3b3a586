"""Runs of programs: where their records and journals are, and how they are read from there."""
