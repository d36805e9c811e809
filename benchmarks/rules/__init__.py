"""The part of the benchmark about rules: what it costs to find those that a request has to obey."""
