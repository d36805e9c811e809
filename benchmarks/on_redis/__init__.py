"""The part of the benchmark that needs Redis servers; it starts its own."""
