"""Runs of programs: how they are started, found, followed and ended."""
