"""Rules as operators write them, compiled into a policy: a request in, a selection of limits out."""
