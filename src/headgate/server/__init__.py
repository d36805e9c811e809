"""The decision plane: a service that answers checks over HTTP, gRPC and Envoy's rate limit protocol.

From the bottom up: `wire` has the protocols; `api` the requests over HTTP, `rpc` those over gRPC, `rls` and `authz`
those of Envoy; all of them reach the engine of rules through `decisions`.
"""
