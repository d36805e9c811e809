"""What is asked over HTTP: checks, batches, forward authentication, health."""
