"""The version of the firmware interface."""

INTERFACE_MAJOR = 1
INTERFACE_MINOR = 9


def advice(daemon_major: int, client_major: int) -> str:
    """Return the advice when daemon and client differ in the major version: which side is older."""
    if client_major > daemon_major:
        return "the daemon is the older one: end it with 'softnpu stop'; the next program starts a new one"
    return (
        "the program has the older softnpu: install that of the daemon there (pip install -U softnpu), "
        "or give it a daemon of its own with SOFTNPU_SOCKET"
    )
