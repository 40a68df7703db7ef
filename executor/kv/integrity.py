"""What a broken book is called."""


class IntegrityError(AssertionError):
    """The program broke a rule of block accounting: a bug, not a state to be handled."""
