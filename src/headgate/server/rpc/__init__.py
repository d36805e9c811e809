"""What is asked over gRPC: our own service, health and reflection."""
