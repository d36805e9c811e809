"""Tests of `headgate.integrations`."""
