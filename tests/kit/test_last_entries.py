"""The last entries of something: bounded in memory, and in the files of several workers."""

from proxy.kit.last_entries import Folder, Memory


def test_entries_in_memory_are_bounded_in_number_and_bytes():
    kept = Memory(most_entries=3, most_bytes=10)
    for entry in ("a", "b", "c", "d"):
        kept.add(entry)
    assert [*kept] == ["b", "c", "d"]
    kept.make_room(8)
    assert [*kept] == ["c", "d"]
    kept.add("too large")
    assert [*kept] == ["d", "too large"]
    kept.clear()
    assert [*kept] == []


def test_what_workers_keep_together_is_bounded_too(tmp_path):
    for number in range(100):
        (tmp_path / f"recent-{number}.jsonl").touch()
    (tmp_path / "other-1.jsonl").touch()
    kept = Folder(tmp_path, "recent", part_bytes=100)
    for number in range(50):
        kept.add(b"entry %02d" % number)
    entries = [*kept]
    assert b"entry 49" in entries
    assert 10 <= len(entries) <= 20
    assert len([*tmp_path.iterdir()]) <= 67
    kept.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["other-1.jsonl"]
