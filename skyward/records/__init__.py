"""What remains of runs: journals of what programs and nodes print and of what pools do, and the record of each run."""
