"""The HTTP API: checks, batches, forward authentication, health and metrics."""
