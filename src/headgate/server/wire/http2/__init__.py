"""HTTP/2 (RFC 9113) from the server's side: a machine without I/O, and the protocol that puts it on a transport."""
