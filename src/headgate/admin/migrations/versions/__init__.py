"""Each step, in order."""
