"""Metrics, hot keys, logs and traces of a node."""
