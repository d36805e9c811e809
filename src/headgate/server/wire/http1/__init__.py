"""HTTP/1.1 (RFC 9112) from the server's side, without I/O."""
