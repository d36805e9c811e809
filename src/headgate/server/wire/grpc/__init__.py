"""gRPC over HTTP/2: calls, their messages, deadlines and statuses."""
