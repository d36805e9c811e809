"""The gateway: Envoy, configured by a short file, which calls Headgate for every request; both are supervised.

::

    gateway.yaml ── loading ──> model ──> bootstrap ──> Envoy's resources ── envoy ──> the process, and its reloads
                                  └─────> running ────> rules and identity files of the decision service
"""
