"""How a parser says that a tool's output is of no use."""


class Unreadable(Exception):
    """One line: the tool, and what is wrong."""
