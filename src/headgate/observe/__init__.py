"""Seeing what a node does: metrics, hot keys, logs and traces."""
