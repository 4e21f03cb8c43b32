from proxy.ports import Content, hears
from proxy.telemetry.observer import fan_out


class Heard(list):
    def __call__(self, event, /, **fields):
        self.append((event, fields))


class Choosy(Heard):
    def listener(self, event):
        return self.append if event == "turn.completed" else None


def broken(event, /, **fields):
    raise ZeroDivisionError


def test_what_was_said_is_left_out_unless_it_is_wanted():
    message = {"content": "secret"}
    discreet, open_minded = Heard(), Heard()
    fan_out([discreet], content=False)("turn.completed", seconds=1, content={"message": message})
    fan_out([open_minded], content=True)("turn.completed", seconds=1, content={"message": message})
    assert discreet == [("turn.completed", {"seconds": 1})]
    assert open_minded == [("turn.completed", {"seconds": 1, "message": Content(message)})]


def test_an_observer_with_a_bug_disturbs_nobody_and_is_told_of_once():
    log, last = Heard(), Heard()
    observe = fan_out([log, broken, last], content=False)
    for _ in range(3):
        observe("a")
    observe("b")
    assert [event for event, _ in last] == ["a", "a", "a", "b"]
    failures = [fields["on"] for event, fields in log if event == "observer.failed"]
    assert failures == ["a", "b"]


def test_content_is_cut_and_read_as_text():
    assert Content("x" * 10).text(most=4) == "xxxx..."
    assert Content([{"role": "user"}]).text() == '[{"role":"user"}]'


def test_it_is_known_what_nobody_hears():
    choosy = fan_out([Choosy()], content=False)
    assert hears(choosy, "turn.completed")
    assert not hears(choosy, "turn.started")
    assert hears(fan_out([Choosy(), Heard()], content=False), "turn.started")
    asked = []
    fanned = fan_out([type("Log", (Heard,), {"listener": lambda self, event: asked.append(event)})()], content=False)
    assert not any([hears(fanned, "turn.started"), hears(fanned, "turn.started")])
    assert asked == ["turn.started"], "an observer is asked once"
    assert hears(Heard(), "turn.started"), "one that cannot be asked may listen to everything"
