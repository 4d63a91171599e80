"""Placeholder."""
DISTRIBUTIONS: dict = {}
