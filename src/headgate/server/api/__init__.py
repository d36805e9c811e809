"""What is asked over HTTP: checks, batches, forward authentication, health.

One subject each: `body`, what a body asks; `checks` and `batch`, how that is decided; `answer`, what is answered;
`forward_auth`, proxies that ask; `health`; `routes`, which path is answered by what.
"""
