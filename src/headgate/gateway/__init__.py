"""The gateway: a file of a few lines becomes an Envoy that consults Headgate about every request; both are supervised.

::

    gateway.yaml ── loading ──> model ──> bootstrap ──> Envoy's resources ── envoy ──> the process, and its reloads
                                  └─────> running ────> rules and identity files of the decision service
"""
