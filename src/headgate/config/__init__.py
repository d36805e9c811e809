"""Configuration as data: forms that are declared once, problems with their places, YAML, lengths and moments."""
