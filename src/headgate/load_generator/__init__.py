"""A bounded load generator: how many checks a service answers, and how fast.

`targets` says where to, `questions` what is asked, `http1` and `http2` are the clients without I/O, `running` drives
them, and `statistics` counts. It shares no code with the server, so that both cannot be wrong in the same way.
"""
