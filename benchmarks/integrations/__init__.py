"""The cost of a limit per request of an application, beside the usual limiters of its framework."""
