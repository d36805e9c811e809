"""Who the clients of proxies are, by a file that an operator writes: addresses, API keys and tokens."""
