"""Pools: lifecycle, scheduling, node health. Knows no provider by name."""
