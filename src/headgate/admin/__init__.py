"""The admin plane: rules, tiers, users and keys in a database, which people change and every node follows."""
