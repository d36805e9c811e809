"""The decision plane: a service that answers checks over HTTP, gRPC and Envoy's rate limit protocol.

From the wire up, one subject each: `wire`, the protocols; `api`, what is asked over HTTP; `rpc`, over gRPC; `rls` and
`authz`, by Envoy; `decisions`, the only way from there to the engine of rules.
"""
