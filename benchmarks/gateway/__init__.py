"""The part of the benchmark that sends requests through a gateway: Envoy, with and without a decision about each."""
