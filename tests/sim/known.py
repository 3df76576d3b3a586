"""Violations that are being worked on."""

KNOWN = "interrupted by the client, which"  # a pattern for their texts; nothing matches an empty one
