"""Access logs as evidence: reading them, deciding again what they recorded, and the limits that they suggest."""
