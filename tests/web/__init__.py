"""Tests of `headgate.web`."""
