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
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` leaves it
            _await_hangup()
    from proxy.commands import cli  # noqa: PLC0415 - takes half a second

    try:
        try:
            cli.main()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # whoever reads the output, such as `head`, needs no more of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter writes what is left at its end
        sys.exit(1)


def _await_hangup() -> None:
    """End at SIGHUP if the terminal is gone that the process was started on; there is nothing to reload yet.

    Not by SIG_IGN: that is what `nohup` leaves, and the server must know it.
    """
    from proxy.server.hangup import has_terminal  # noqa: PLC0415 - the handlers of the other signals come first

    was_on_terminal = has_terminal()

    def end_without_terminal(*_: object) -> None:
        if was_on_terminal and not has_terminal():
            _end()

    signal.signal(signal.SIGHUP, end_without_terminal)


def _end(*_: object) -> None:
    """Exit at once, as long as there is nothing to clean up; the server installs its own handlers when it starts.

    An exception would be lost if the signal came in the middle of an import that catches it.
    """
    os._exit(0)


if __name__ == "__main__":
    main()
