"""State in Redis or Valkey, shared by any number of processes: the same decisions, made on the server by a script."""
