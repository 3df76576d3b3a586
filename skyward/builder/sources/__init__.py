"""Declarations of images: TOML files, and scripts and notebooks, which are read without being run."""
