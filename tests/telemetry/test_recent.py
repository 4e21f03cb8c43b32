from proxy.telemetry.events import Content
from proxy.telemetry.recent import Recent
from proxy.telemetry.records import RequestRecord
from proxy.telemetry.trace_context import root


def story(request_id, *, at=0.0, **fields):
    return RequestRecord(request_id, began=at, began_at=at, span=root(), parent=None, fields=fields)


def answered(recent, *args, **kwargs):
    one = story(*args, **kwargs)
    recent.started(one)
    one.seconds = 1.0
    recent.completed(one)


def names(recent):
    return [one["request_id"] for one in recent.latest()]


def test_the_newest_comes_first_and_the_oldest_make_room():
    recent = Recent(most_requests=2)
    for at, name in enumerate("abc"):
        answered(recent, name, at=at)
    assert names(recent) == ["c", "b"]
    assert recent.find("a") is None


def test_no_more_bytes_are_kept_than_permitted_whatever_the_requests_are():
    recent = Recent(most_bytes=2000)
    for at in range(50):
        answered(recent, f"r{at}", at=at, path="/" + "x" * 400)
    assert 0 < len(names(recent)) < 8
    answered(recent, "huge", at=99, **{f"field{number}": "x" * 300 for number in range(50)})
    assert names(recent) == []


def test_what_is_open_is_shown_as_far_as_it_has_come():
    recent = Recent()
    recent.started(story("open", at=5))
    answered(recent, "done", at=1)
    assert names(recent) == ["open", "done"]
    assert recent.find("open")["seconds"] is None


def test_of_two_requests_with_one_id_the_newer_is_found():
    recent = Recent()
    answered(recent, "same", at=1, path="/first")
    answered(recent, "same", at=2, path="/second")
    assert recent.find("same")["path"] == "/second"


def test_several_workers_remember_together(tmp_path):
    answered(Recent(str(tmp_path)), "b", at=2)
    (own,) = tmp_path.glob("recent-*")
    entry = own.read_bytes()
    own.rename(tmp_path / "recent-1.jsonl")
    answered(Recent(str(tmp_path)), "a", at=1)
    with (tmp_path / "recent-1.jsonl").open("ab") as file:
        file.write(entry[: len(entry) // 2])  # a worker is just writing it
    assert names(Recent(str(tmp_path))) == ["b", "a"]


def test_texts_are_whole_unless_the_record_is_long():
    recent = Recent()
    answered(recent, "short", path="/" + "x" * 999)
    answered(recent, "long", path="/" + "x" * 999_999, prompt=Content("y" * 999_999), usage={"tokens": 1})
    short, long = recent.find("short"), recent.find("long")
    assert short["path"] == "/" + "x" * 999
    assert long["path"] == "/" + "x" * 299 + "..."
    assert long["prompt"] == "y" * 16384 + "..."
    assert long["usage"] == {"tokens": 1}


def test_what_is_no_json_is_shown_as_text():
    recent = Recent()
    answered(recent, "r", error=ValueError("odd"), result=Content({"found": 1}), rate=float("nan"), count=10**30)
    shown = recent.find("r")
    assert shown["error"] == "odd"
    assert shown["result"] == '{"found":1}'
    assert shown["count"] == 10**30
    assert "rate" not in shown
