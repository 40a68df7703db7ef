"""Domain values, standard library only: what a request, a class, a fault is. No effects."""
