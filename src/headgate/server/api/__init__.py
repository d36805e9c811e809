"""What is asked over HTTP: checks, batches, forward authentication, health.

One subject each: `questions`, what a body asks; `checks`, how that is decided; `answers`, what is answered;
`forward_auth`, proxies that ask; `pages`, health and metrics; `routes`, which path is answered by what.
"""
