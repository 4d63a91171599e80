"""Placeholder."""
SUITES: tuple = ()
def packages(suite, kernels): return []
