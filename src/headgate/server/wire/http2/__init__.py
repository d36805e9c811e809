"""HTTP/2 (RFC 9113) from the server's side, without I/O."""
