"""The pages of the console, a module for each part of the navigation."""
