"""Rules as data: what an operator writes, compiled into a policy: a request in, a selection of limits out."""
