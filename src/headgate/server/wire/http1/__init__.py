"""HTTP/1.1 (RFC 9112) from the server's side: a machine without I/O, and the protocol that puts it on a transport."""
