"""Envoy's external authorization."""
