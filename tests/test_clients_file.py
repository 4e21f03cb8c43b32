"""`clients_file`: read with the configuration, and written by `toolproxy key` without losing an entry."""

import re
import stat
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
import yaml

from proxy.app import create_app
from proxy.app.configuration import load
from proxy.commands.cli import main
from proxy.commands.key import add_key, remove_key
from proxy.config.clients_file import entries_in
from proxy.server.checks import check_startable, check_usable
from proxy.server.reload import Reloads, Trigger
from proxy.wire.errors import ConfigurationError
from tests.fakes import FakeClock
from tests.serving import serving

UP = "upstreams: {up: {base_url: 'http://127.0.0.1:9', api_key: a-key}}\nmodels: {m: {upstream: up}}\n"
OWN = "clients: [{name: own, key: the-key-of-the-own-client}]\n"
OF_FILE = "clients_file: clients.yaml\n"
KEY = re.compile(r"tp_[A-Za-z0-9_-]{43}")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a configuration, which is the working directory."""
    (tmp_path / "config.yaml").write_text(UP + OF_FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLPROXY_CONFIG", raising=False)
    return tmp_path


def clients_of(folder, environ=None):
    loaded = load(folder / "config.yaml", environ or {})
    return [client.name for client in loaded.config.clients], loaded


def toolproxy(capsys, *arguments):
    """What a command prints, and its exit code."""
    code = 0
    try:
        main(arguments)
    except SystemExit as exc:
        code = exc.code
    out, err = capsys.readouterr()
    return code, out, err


LISTS = {
    "nothing": "",
    "comments": "# ours\n",
    "an empty list": "[]\n",
    "a block": "# ours\n- name: a\n  key: x\n",
    "no line end": "- name: a\n  key: x",
    "a mapping": "clients:\n  - name: a\n    key: x   # of a\n",
    "a mapping, not indented": "clients:\n- name: a\n  key: x\n",
    "an empty mapping": "clients:\n",
    "a mapping of an empty list": "clients: []\n",
    "deep": "clients:\n      - name: a\n        key: [x, y]\n      -\n        name: b\n        key: >\n          z\n\n# end\n",
    "in brackets": "[{name: a, key: x}, {name: b, key: y}, ]\n",
    "in brackets, over lines": "clients: [\n  {name: a, key: x},\n  {name: b, key: y}\n]\n",
    "other line ends": "- name: a\r\n  key: x\r\n",
    "variables": "- name: a\n  key: ${KEY_OF_A:-x}\n  budget: {per: day, tokens: 5}\n- {name: b, key: y}\n",
}


@pytest.mark.parametrize("name", ["c", "no", "1e3", "c: d", "ü # {x}", '"', "- x", "c " * 60])
@pytest.mark.parametrize("text", LISTS.values(), ids=LISTS)
def test_an_entry_is_added_and_removed_and_the_others_stay(tmp_path, text, name):
    file = tmp_path / "clients.yaml"
    file.write_text(text, newline="")
    before = entries_in(text)
    key = add_key(file, name, {})
    assert entries_in(file.read_text()) == [*before, {"name": name, "key_sha256": sha256(key.encode()).hexdigest()}]
    remove_key(file, name, {})
    assert entries_in(file.read_text()) == before


def test_comments_at_its_beginning_stay_and_without_any_the_file_says_that_others_do_not(tmp_path):
    file = tmp_path / "clients.yaml"
    for text, head in (
        ("", "# Written by `toolproxy key`."),
        ("# ours\n# too\n- {name: b} # of b\n", "# ours\n# too\n-"),
    ):
        file.write_text(text)
        add_key(file, "a", {})
        remove_key(file, "a", {})
        assert file.read_text().startswith(head)
        assert "of b" not in file.read_text()


def test_variables_in_it_are_still_variables_after_a_change(folder):
    (folder / "clients.yaml").write_text("- {name: '${A}', key: '${KEY}', requests_per_minute: '${N:-5}'}\n")
    add_key(folder / "clients.yaml", "b", {})
    _, loaded = clients_of(folder, {"A": "a", "KEY": "key-of-sixteen-or-more"})
    assert [(one.name, one.requests_per_minute) for one in loaded.config.clients] == [("a", 5), ("b", None)]


@pytest.mark.parametrize("text", ["{}", "5", "clients: {a: b}", "other: []", "- a: ["])
def test_a_text_that_is_no_list_of_clients_is_refused_and_not_changed(tmp_path, text):
    file = tmp_path / "clients.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=r"clients\.yaml: it is not"):
        add_key(file, "c", {})
    assert file.read_text() == text


def test_its_clients_come_after_those_of_the_configuration_and_its_faults_name_its_lines(folder):
    (folder / "config.yaml").write_text(UP + OWN + OF_FILE)
    (folder / "clients.yaml").write_text("clients:\n- {name: a, key: '${A_KEY}'}\n- {name: b, key: '${B_KEY}'}\n")
    names, loaded = clients_of(folder, {"B_KEY": "short"})
    assert names == ["own", "b"]
    assert loaded.disabled["clients_file[0]"].why == "A_KEY is not set"
    assert loaded.warnings == ("clients.yaml:3: clients_file[1].key: has fewer than 16 characters, and can be guessed",)
    assert [(path, client.name) for path, client in loaded.clients()] == [
        ("clients[0]", "own"),
        ("clients_file[1]", "b"),
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("- {name: own, key: x}", "clients.yaml:1: clients_file[0].name: there is another client named 'own'"),
        ("\n- name: a\n  kee: x", "clients.yaml:3: clients_file[0].kee: unknown key"),
        (
            "\n- {name: a, key: the-key-of-the-own-client}",
            "clients.yaml:2: clients_file[0]: another client has the same",
        ),
        ("- [", "clients.yaml:1: is not YAML"),
        ("a-word", "clients.yaml:1: clients_file[]: must be a list of clients, not a single value"),
        ("clients: []\nmore: []", "clients.yaml:2: clients_file.more: unknown key; known is clients"),
        (b"\xff\xfe", "clients.yaml: is not UTF-8"),
    ],
)
def test_a_fault_in_it_is_one_line(folder, text, fault):
    (folder / "config.yaml").write_text(UP + OWN + OF_FILE)
    (folder / "clients.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigurationError) as refused:
        clients_of(folder)
    [line] = refused.value.faults
    assert fault in line


def test_a_folder_in_its_place_is_a_fault_and_an_absolute_path_is_taken_as_it_is(folder):
    (folder / "clients.yaml").mkdir()
    with pytest.raises(ConfigurationError, match=r"clients\.yaml: cannot be read: Is a directory"):
        clients_of(folder)
    (folder / "else").mkdir()
    (folder / "config.yaml").write_text(f"{UP}clients_file: {folder}/else/c.yml\n")
    (folder / "else" / "c.yml").write_text("- {name: a, key: the-key-of-client-a}\n")
    assert clients_of(folder)[0] == ["a"]


def test_from_client_cannot_be_combined_with_it_once_it_is_there(folder):
    (folder / "config.yaml").write_text(UP.replace("a-key", "from_client") + OF_FILE)
    assert clients_of(folder)[0] == []
    (folder / "clients.yaml").touch()
    with pytest.raises(ConfigurationError, match="from_client cannot be combined with clients"):
        clients_of(folder)


EMPTY = ["", "# all gone\n", "[]", "clients:\n", "clients: []\n", "null"]


@pytest.mark.parametrize("text", EMPTY)
async def test_once_it_is_there_no_clients_means_nobody(folder, text):
    _, loaded = clients_of(folder)
    assert not loaded.needs_key
    check_startable(loaded)
    (folder / "clients.yaml").write_text(text)
    names, loaded = clients_of(folder)
    assert (names, loaded.needs_key) == ([], True)
    async with serving(create_app(loaded)) as url, httpx.AsyncClient(base_url=url) as client:
        for headers in ({}, {"authorization": "Bearer x"}, {"x-api-key": "none"}):
            assert (await client.get("/v1/models", headers=headers)).status_code == 401
            assert (await client.get("/chat", headers=headers)).status_code == 404
            assert "models" not in (await client.get("/", headers=headers)).json() or headers
        assert (await client.get("/healthz")).status_code == 200


def test_beyond_loopback_a_file_without_clients_is_safe_and_no_file_is_not(folder):
    (folder / "config.yaml").write_text(UP + OF_FILE + "server: {host: 0.0.0.0, port: 0}\n")
    with pytest.raises(ConfigurationError, match="refusing to serve just anyone"):
        check_startable(clients_of(folder)[1])
    (folder / "clients.yaml").touch()
    check_startable(clients_of(folder)[1])


def reloads_of(folder, clock, heard):
    """The reloads of a proxy that watches its files, and has just read them."""
    trigger = Trigger(now=clock.monotonic)
    trigger.watch(folder / "config.yaml")
    read = lambda: load(folder / "config.yaml", {})  # noqa: E731
    return Reloads(read(), load=read, check=check_usable, trigger=trigger, observe=heard)


class Heard(list):
    def __call__(self, event, /, **fields):
        self.append((event, fields))


def looked(reloads, clock):
    """Reload as often as the watch asks for it, over some seconds."""
    for _ in range(3):
        clock.now += 1.5
        reloads.reload()
    return [client.name for client in reloads.loaded.config.clients], reloads.loaded.needs_key


def test_a_watch_sees_it_come_change_and_go_and_it_never_opens_what_was_closed(folder):
    clock, heard, file = FakeClock(), Heard(), folder / "clients.yaml"
    reloads = reloads_of(folder, clock, heard)
    assert looked(reloads, clock) == ([], False)
    add_key(file, "a", {})
    assert looked(reloads, clock) == (["a"], True)
    add_key(file, "b", {})
    assert looked(reloads, clock) == (["a", "b"], True)
    for name in "ab":
        remove_key(file, name, {})
    assert looked(reloads, clock) == ([], True)
    add_key(file, "c", {})
    assert looked(reloads, clock) == (["c"], True)
    file.unlink()
    assert looked(reloads, clock) == ([], True)
    file.write_text("- nonsense")
    assert looked(reloads, clock) == ([], True)
    assert heard[-1][0] == "configuration.refused"
    assert heard[-1][1]["faults"] == ["clients.yaml:1: clients_file[0]: must be a mapping, not a single value"]
    (folder / "config.yaml").write_text(UP)
    assert looked(reloads, clock) == ([], True)
    assert "no client is usable any more" in heard[-1][1]["faults"][0]


def test_a_change_between_reading_and_watching_is_seen(folder, monkeypatch):
    clock = FakeClock()
    file = folder / "clients.yaml"
    trigger = Trigger(now=clock.monotonic)
    trigger.watch(folder / "config.yaml")
    loaded = clients_of(folder)[1]
    add_key(file, "a", {})
    trigger.watch_clients(loaded.clients_file)
    clock.now += 1.5
    assert trigger.take() == "changed"


def test_key_add_prints_a_key_once_whose_hash_alone_is_kept(folder, capsys):
    code, out, err = toolproxy(capsys, "key", "add", "app-one")
    assert code == 0
    key = KEY.fullmatch(out.strip())[0]
    assert "from then on every request needs a key" in err
    text = (folder / "clients.yaml").read_text()
    assert yaml.safe_load(text) == [{"name": "app-one", "key_sha256": sha256(key.encode()).hexdigest()}]
    assert not any(key[at : at + 6] in text + err for at in range(len(key) - 5))
    assert stat.S_IMODE((folder / "clients.yaml").stat().st_mode) == 0o600
    [client] = clients_of(folder)[1].config.clients
    assert client.digests == {sha256(key.encode()).hexdigest()}
    assert {path.name for path in folder.iterdir()} == {"config.yaml", "clients.yaml"}


def test_a_name_that_is_there_already_is_a_fault_and_nothing_is_changed(folder, capsys):
    (folder / "config.yaml").write_text(UP + OWN + OF_FILE)
    toolproxy(capsys, "key", "add", "a")
    before = (folder / "clients.yaml").read_bytes()
    for name, place in (("a", "clients.yaml:2"), ("own", "config.yaml:3")):
        code, out, err = toolproxy(capsys, "key", "add", name)
        assert (code, out) == (1, "")
        assert err == f"toolproxy: there is already a client {name!r}, in {place}; nothing has changed\n"
    assert (folder / "clients.yaml").read_bytes() == before


def test_a_name_that_is_a_variable_is_known_by_its_value(folder, capsys, monkeypatch):
    monkeypatch.setenv("NAME_OF_A", "a")
    (folder / "clients.yaml").write_text("- {name: '${NAME_OF_A}', key: the-key-of-client-a}\n")
    for command, fault in (("add", "there is already a client 'a'"), ("remove", "remove it there")):
        code, _, err = toolproxy(capsys, "key", command, "a")
        assert (code, fault in err) == (1, True)
    assert clients_of(folder, {"NAME_OF_A": "a"})[0] == ["a"]


@pytest.mark.parametrize("name", ["", " ", "a\nb", "${NAME}", "\x1b[2J"])
def test_a_name_that_is_none_is_a_fault(folder, capsys, name):
    code, _, err = toolproxy(capsys, "key", "add", name)
    assert (code, err.count("\n")) == (1, 1)
    assert not (folder / "clients.yaml").exists()


def test_key_list_has_every_client_with_its_place_and_no_key(folder, capsys):
    (folder / "config.yaml").write_text(UP + OWN + OF_FILE)
    (folder / "clients.yaml").write_text("- {name: another one, key: '${UNSET}'}\n")
    toolproxy(capsys, "key", "add", "a")
    code, out, _ = toolproxy(capsys, "key", "list")
    assert code == 0
    assert out.splitlines() == [
        "own          config.yaml:3",
        "a            clients.yaml:4",
        "another one  clients.yaml:2  disabled, UNSET is not set",
    ]


def test_key_remove_removes_one_and_says_where_the_others_are(folder, capsys):
    (folder / "config.yaml").write_text(UP + OWN + OF_FILE)
    for name in ("a", "b"):
        toolproxy(capsys, "key", "add", name)
    assert toolproxy(capsys, "key", "remove", "a")[:2] == (0, "")
    assert clients_of(folder)[0] == ["own", "b"]
    for name, fault in (
        ("a", f"there is no client 'a' in {folder}/clients.yaml"),
        ("own", "the client 'own' is in config.yaml:3: remove it there"),
    ):
        assert toolproxy(capsys, "key", "remove", name) == (1, "", f"toolproxy: {fault}\n")


def test_without_the_line_in_the_configuration_it_is_said_which_to_add(folder, capsys):
    (folder / "config.yaml").write_text(UP)
    for command in (("add", "a"), ("remove", "a")):
        code, out, err = toolproxy(capsys, "key", *command)
        assert (code, out) == (1, "")
        assert err == (
            "toolproxy: config.yaml has no file for clients; add this line to it: clients_file: clients.yaml\n"
        )


def test_writers_at_once_lose_nothing(tmp_path):
    file = tmp_path / "clients.yaml"
    file.write_text("- {name: old, key: x}\n")

    def work(number):
        add_key(file, f"n{number}", {})
        if number % 2:
            remove_key(file, f"n{number}", {})

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(64)))
    assert {entry["name"] for entry in entries_in(file.read_text())} == {"old", *(f"n{n}" for n in range(0, 64, 2))}


def test_a_link_is_followed_and_what_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    real, link = tmp_path / "real" / "clients.yaml", tmp_path / "clients.yaml"
    real.parent.mkdir()
    real.write_text("")
    link.symlink_to(real)
    add_key(link, "a", {})
    assert link.is_symlink()
    assert entries_in(real.read_text())[0]["name"] == "a"
    with pytest.raises(ConfigurationError, match="cannot be written: No such file or directory"):
        add_key(tmp_path / "nowhere" / "clients.yaml", "a", {})

    def mounted(*_):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(Path, "replace", mounted)
    with pytest.raises(ConfigurationError, match="it is mounted by itself; mount its folder instead"):
        add_key(real, "b", {})
    assert [path.name for path in real.parent.iterdir()] == ["clients.yaml"]
