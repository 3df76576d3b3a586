"""Image declarations: TOML files and projects. Programs are run to find theirs, see `skyward.runs.describe`."""
