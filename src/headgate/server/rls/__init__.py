"""Envoy's rate limit service, envoy.service.ratelimit.v3, over gRPC and as JSON."""
