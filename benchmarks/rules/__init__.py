"""The part of the benchmark about rules: the cost of finding those that apply to a request."""
