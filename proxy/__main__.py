"""The entry point of the command: `toolproxy`, and `python -m proxy`.

No slow imports are made before the signal handlers are set: the first process of a container ignores a SIGTERM for
which it has no handler, and would be killed when the grace period is over.
"""

import os
import signal
import sys


def main() -> None:
    """Run the command, which can be ended by a signal at any moment."""
    if sys.argv[1:2] == ["serve"]:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _end)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the configuration has not been read yet
    from proxy.commands import cli  # noqa: PLC0415 - takes half a second

    try:
        try:
            cli.main()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # whoever reads the output, such as `head`, needs no more of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter writes what is left at its end
        sys.exit(1)


def _end(*_: object) -> None:
    """Exit at once, as long as there is nothing to clean up; the server installs its own handlers when it starts.

    An exception would be lost if the signal came in the middle of an import that catches it.
    """
    os._exit(0)


if __name__ == "__main__":
    main()
