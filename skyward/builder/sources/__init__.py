"""Image declarations: TOML files, and scripts and notebooks, which are read without being run."""
