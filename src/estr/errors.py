"""The one exception that a user's mistake may raise."""


class UserError(Exception):
    """A mistake that the user can mend: one line naming the file, key or row, and what to do.

    The command line prints the message without a traceback and exits with code 2.
    """
