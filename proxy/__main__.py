"""The command from its first moment: `toolproxy`, and `python -m proxy`.

Nothing is imported here that takes time. As the first process of a container, a command that has not yet said what it
does at SIGTERM would not notice it, and be killed when the grace is over.
"""

import os
import signal
import sys


def main() -> None:
    """Run the command, which a signal ends at any moment."""
    if sys.argv[1:2] == ["serve"]:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _end)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the configuration has not been read yet
    from proxy import cli  # noqa: PLC0415 - takes half a second

    cli.main()


def _end(*_: object) -> None:
    """End at once, before there is anything to clean up; the server has a way of its own as soon as it starts.

    An exception would be lost where it strikes in the middle of somebody's import.
    """
    os._exit(0)


if __name__ == "__main__":
    main()
