"""Records of runs: journals of the output of programs and nodes and of pools' events, and the record of each run."""
