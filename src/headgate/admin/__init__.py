"""The admin plane: rules, tiers, users and keys in a database, changed by people, followed by every node."""
