"""Access logs: reading them, replaying them by rules, and suggesting limits."""
