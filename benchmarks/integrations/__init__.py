"""What a limit costs an application per request, beside what the usual limiters of its framework cost it."""
