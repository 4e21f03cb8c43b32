"""What is asked of a target, and what it costs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import msgspec
import orjson

from bench.load import Figures, Spec
from bench.processes import PYTHON, cores, cpu_seconds, first_line, memory, running
from bench.targets import ROOT, Target

_QUESTION = "What does all work and no play make of a proxy? " * 16  # a request of about 1 KB in all
_LOAD = [PYTHON, "-m", "bench.load"]
_LOAD_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Sample:
    """One run. CPU in microseconds, per answer and per chunk; `busy` is the share of its core that the target used."""

    figures: Figures
    cpu: float
    busy: float

    @property
    def per_answer(self) -> float:
        """CPU of the target for one answer."""
        return self.cpu * 1e6 / max(1, self.figures.answers)

    @property
    def per_chunk(self) -> float:
        """CPU of the target for one chunk, the set-up of its stream included in its share."""
        return self.cpu * 1e6 / max(1, self.figures.chunks)

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self.figures.answers / max(1e-9, self.figures.seconds)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load for any target. Without `tools` no server tool is in play; `first`: before all other processes."""

    name: str
    kind: str
    model: str
    connections: int = 1
    seconds: float = 2.0
    rate: float = 0.0
    stream: bool = False
    tools: bool = False
    messages: int = 1
    client_tools: int = 0
    first: bool = False

    def spec(self, target: Target) -> Spec:
        """For one target."""
        headers = target.headers if self.tools else {**target.headers, "x-server-tools": "none"}
        return Spec(
            self.kind, target.port, self._body(), headers, self.connections, self.seconds, self.rate, first=self.first
        )

    def _body(self) -> str:
        turn = {"role": "user", "content": _QUESTION if self.messages == 1 else _QUESTION[:200]}
        body: dict[str, object] = {
            "model": self.model,
            "messages": [turn] * self.messages,
            "temperature": 0.5,
            "stream": self.stream,
        }
        if self.client_tools:
            body["tools"] = [_function(number) for number in range(self.client_tools)]
        return orjson.dumps(body).decode()


def _function(number: int) -> dict[str, object]:
    parameters = {"type": "object", "properties": {"city": {"type": "string", "description": "Where."}}}
    function = {"name": f"client_tool_{number}", "description": "Something of the app's.", "parameters": parameters}
    return {"type": "function", "function": function}


def run(scenario: Scenario, target: Target) -> Sample:
    """One run of a scenario against one target."""
    before = cpu_seconds(target.pid)
    figures = load(scenario.spec(target))
    used = cpu_seconds(target.pid) - before
    return Sample(figures, used, used / max(1e-9, figures.seconds))


def load(spec: Spec) -> Figures:
    """What a load has seen."""
    with running(_LOAD, cores=cores()[1], cwd=ROOT) as process:
        told, _ = process.communicate(_line(spec), timeout=_LOAD_SECONDS)
    return msgspec.json.decode(told, type=Figures)


def _line(spec: Spec) -> str:
    return msgspec.json.encode(spec).decode() + "\n"


@contextmanager
def held(scenario: Scenario, target: Target) -> Iterator[None]:
    """Streams that stay open for as long as this lasts."""
    with running(_LOAD, cores=cores()[1], cwd=ROOT) as process:
        assert process.stdin  # noqa: S101 - it is a pipe
        process.stdin.write(_line(scenario.spec(target)))
        process.stdin.flush()
        if first_line(process) != "held":
            raise RuntimeError("the streams could not be opened")
        yield


def bytes_per_stream(target: Target, *, streams: int) -> float:
    """Memory that an open, idle stream takes."""
    scenario = Scenario("idle", "hold", "idle", connections=streams, stream=True)
    with held(replace(scenario, connections=10), target):
        pass  # what is made once for all streams is made now
    before = memory(target.pid)
    with held(scenario, target):
        time.sleep(1.0)
        return (memory(target.pid) - before) / streams
