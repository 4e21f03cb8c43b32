from proxy.telemetry.events import Content, FanOut


class Recorder(list):
    """Handles `events`, or every event."""

    def __init__(self, *events):
        super().__init__()
        self.events = events
        self.asked = []

    def handler(self, event):
        self.asked.append(event)
        wanted = not self.events or event in self.events
        return (lambda fields: self.append((event, {**fields}))) if wanted else None


class Broken:
    def __init__(self):
        self.handle = lambda fields: fields["missing"]

    def handler(self, event):
        return self.handle


def test_content_is_left_out_unless_it_is_wanted():
    message = {"content": "secret"}
    without, with_content = Recorder(), Recorder()
    FanOut([without], content=False)("turn.completed", seconds=1, content={"message": message})
    FanOut([with_content], content=True)("turn.completed", seconds=1, content={"message": message})
    assert without == [("turn.completed", {"seconds": 1})]
    ((event, fields),) = with_content
    assert (event, fields.keys()) == ("turn.completed", {"seconds", "message"})
    assert isinstance(fields["message"], Content)
    assert fields["message"].value == message


def test_a_subscriber_with_a_bug_disturbs_no_other_and_is_logged_once_for_each_event():
    log, last = Recorder(), Recorder()
    observe = FanOut([log, Broken(), last], content=False)
    for _ in range(3):
        observe("a")
    observe("b")
    assert [event for event, _ in last] == ["a", "a", "a", "b"]
    failures = [fields["on"] for event, fields in log if event == "observer.failed"]
    assert failures == ["a", "b"]


def test_content_is_cut_and_read_as_text():
    assert Content("x" * 10).text(most=4) == "xxxx..."
    assert Content([{"role": "user"}]).text() == '[{"role":"user"}]'


def test_an_event_is_wanted_where_any_subscriber_handles_it():
    some = FanOut([Recorder("turn.completed")], content=False)
    assert some.handles("turn.completed")
    assert not some.handles("turn.started")
    assert FanOut([Recorder("turn.completed"), Recorder()], content=False).handles("turn.started")


def test_a_subscriber_is_asked_once_for_each_event():
    subscriber = Recorder("a")
    observe = FanOut([subscriber], content=False)
    for _ in range(2):
        observe("a")
        observe("b")
        observe.handles("b")
    assert subscriber.asked == ["a", "b"]
