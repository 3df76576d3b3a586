"""Violations that are being worked on."""

KNOWN = ""  # a pattern for their texts; nothing matches an empty one
