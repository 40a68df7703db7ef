"""Memory to memory between processes and machines, past both hosts' programs where cards can do that."""
