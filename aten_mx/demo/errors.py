"""The demo's one exception."""


class DemoError(Exception):
    """The user's files or installation are at fault; its text is the one line they see."""
