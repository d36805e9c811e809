"""Clients that keep within the limits of a server: how long they take, and how often they are refused."""
