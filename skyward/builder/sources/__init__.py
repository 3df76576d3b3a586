"""Where images are declared: TOML files, and scripts and notebooks, which are followed without being run."""
