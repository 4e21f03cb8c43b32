"""The journal of the scripted upstream: bounded, and one for all workers."""

import os

import orjson
import pytest

from proxy.mock import journal
from proxy.mock.journal import Attempts, entry_of, journal_in, requests_in, without_keys


def entry(number, body=b'{"n": 1}'):
    return entry_of("POST", f"/{number}", [(b"x", b"y")], body, 200)


@pytest.fixture(params=["memory", "folder"])
def either(request, tmp_path):
    return journal_in(tmp_path if request.param == "folder" else None)


def test_a_journal_holds_the_last_requests_in_order_until_it_is_emptied(either):
    for number in range(journal.MOST_REQUESTS + 5):
        either.add(entry(number))
    paths = [one["path"] for one in requests_in(either)]
    assert paths == [f"/{number}" for number in range(5, journal.MOST_REQUESTS + 5)]
    either.clear()
    assert requests_in(either) == []
    either.add(entry(1))
    assert len(requests_in(either)) == 1


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_a_journal_has_a_bound_in_bytes(where, tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "_MOST_BYTES", 1000)
    kept = journal_in(tmp_path if where == "folder" else None)
    for number in range(100):
        kept.add(entry(number))
    assert 1 <= sum(map(len, kept)) <= 2500
    assert requests_in(kept)[-1]["path"] == "/99"


def test_a_body_with_line_breaks_is_one_line_of_a_journal_and_half_a_line_is_none(either, tmp_path):
    either.add(entry(1, b'{\r\n "a": "b\\n"\n}'))
    (tmp_path / "journal-1.jsonl").write_bytes(entry(2)[:20])
    assert [one["body"] for one in requests_in(either)] == [{"a": "b\n"}]


def test_the_requests_of_all_workers_are_one_list(tmp_path, monkeypatch):
    journals = []
    for process in (11, 12):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        journals.append(journal_in(tmp_path))
    for number in range(6):
        journals[number % 2].add(entry(number))
    paths = [one["path"] for one in requests_in(journals[0])]
    assert paths == [f"/{number}" for number in range(6)]


@pytest.mark.parametrize(("body", "shown"), [(b'{"a": 1}', {"a": 1}), (b"\xff{", "\ufffd{"), (b"", None)])
def test_an_entry_has_the_body_as_json_where_it_is_json(body, shown):
    assert orjson.loads(entry(1, body))["body"] == shown


def test_keys_are_masked_for_everybody_else():
    headers = {"authorization": "Bearer k", "x-api-key": "k", "cookie": "k", "accept": "a"}
    shown = without_keys({"headers": headers})["headers"]
    assert shown == {"authorization": "***", "x-api-key": "***", "cookie": "***", "accept": "a"}


def test_attempts_are_counted_over_all_workers_and_begin_anew_after_the_last(tmp_path):
    first, second = Attempts(tmp_path), Attempts(tmp_path)
    assert [first.next(b"a", 3), second.next(b"a", 3), first.next(b"b", 2), first.next(b"a", 3), second.next(b"a", 3)] == [0, 1, 0, 2, 0]  # fmt: skip
    second.clear()
    assert first.next(b"a", 3) == 0
