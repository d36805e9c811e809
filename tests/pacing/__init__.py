"""Tests of pacing requests to other people's APIs."""
