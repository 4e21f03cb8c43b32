"""Runs an example without any key: a scripted model, the proxy with the example's configuration, and the app.

    python examples/run.py NAME

A folder has `config.yaml` (to copy), `conversations.yaml` (the answers of the scripted model) and the app. For a real
model, set your keys, start `toolproxy serve --config examples/NAME/config.yaml`, and then start the app.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
APPS = {"app.py": [sys.executable], "app.mjs": ["node"], "app.sh": ["sh"]}


def main() -> None:
    """Run the named example, and end with its exit code."""
    names = sorted(path.parent.name for path in HERE.glob("*/config.yaml"))
    if len(sys.argv) != 2 or sys.argv[1] not in names:
        sys.exit(f"usage: python examples/run.py {'|'.join(names)}")
    folder = HERE / sys.argv[1]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes started here end too
    with ExitStack() as stack:
        model = stack.enter_context(toolproxy("mock-upstream", "--script", str(folder / "conversations.yaml")))
        environ = {**os.environ, "MODEL_URL": f"{model}/v1", "SEARCH_URL": model}
        for server in sorted(folder.glob("server*.py")):  # services for the tools of this example
            environ["SERVER_URL"] = stack.enter_context(started([sys.executable, str(server)], environ))
        serve = ("serve", "--port", "0", "--no-env-file", "--config", str(folder / "config.yaml"))
        proxy = stack.enter_context(toolproxy(*serve, environ=environ))
        app = next(folder / name for name in APPS if (folder / name).exists())
        program = APPS[app.name]
        if shutil.which(program[0]) is None:
            sys.exit(f"this example needs {program[0]}")
        told = {"PROXY_URL": proxy, "OPENAI_BASE_URL": f"{proxy}/v1", "OPENAI_API_KEY": "unused"}
        done = subprocess.run([*program, str(app)], env={**environ, **told}, cwd=folder, check=False)
    sys.exit(done.returncode)


def toolproxy(*arguments: str, environ: dict[str, str] | None = None) -> AbstractContextManager[str]:
    """A command of toolproxy's that serves until it is ended; gives its address."""
    port = [] if "--port" in arguments else ["--port", "0"]
    return started([sys.executable, "-m", "proxy", *arguments, *port], environ or dict(os.environ))


@contextmanager
def started(command: list[str], environ: dict[str, str]) -> Iterator[str]:
    """A server whose first line names its address, until this ends."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        try:
            line = process.stdout.readline()
            address = next((word for word in line.split() if word.startswith("http://")), None)
            if address is None:
                sys.exit(f"{' '.join(command)} did not start")
            yield address.removesuffix("/v1")
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
