"""Secrets in texts, JSON and streams: no six characters of one stay, and everything else does."""

import json
import random
import re
import string
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote

import pytest

from proxy.recording.masking import Masker

RUN = 6
SECRET = "sk-proj-A1b2/C3+d4=zzXY_9876543210"
ODD = 'p"ass\\word é\n+/%&9'


def runs(secret, text):
    """The parts of a secret that stand in a text; a few small letters may be a word."""
    found = (secret[at : at + RUN] for at in range(len(secret) - RUN + 1))
    return [run for run in found if run in text and not re.fullmatch("[a-z]+", run)]


@pytest.mark.parametrize("secret", [SECRET, ODD])
@pytest.mark.parametrize(
    "write",
    [
        lambda secret: f"key {secret} end",
        lambda secret: json.dumps({"b": [secret]}),
        lambda secret: json.dumps({"b": json.dumps({"c": secret})}),
        lambda secret: f"https://a.example/?key={quote(secret, safe='')}&b=1",
        lambda secret: f"wrong key: {secret[3:11]}...",
        lambda secret: b64encode(secret.encode()).decode(),
        lambda secret: "Basic " + b64encode(f"me:{secret}".encode()).decode(),
        lambda secret: "Basic " + b64encode(f"a-user:{secret}!".encode()).decode(),
        lambda secret: urlsafe_b64encode(f"x{secret}".encode()).decode(),
    ],
    ids=["plain", "json", "json-in-json", "url", "part", "base64", "basic", "basic-longer", "urlsafe"],
)
def test_a_secret_is_masked_however_it_is_written(secret, write):
    masked = Masker([secret]).text(write(secret))
    assert "***" in masked
    assert runs(secret, masked) == []
    assert runs(b64encode(secret.encode()).decode()[4:-4], masked) == []
    for coded in re.findall("[A-Za-z0-9+/=]{8,}", masked):
        assert secret not in coded


def deltas(parts, name="content", *, escaped=False):
    events = [json.dumps({"id": "c1", "choices": [{"index": 0, "delta": {name: part}}]}) for part in parts]
    if escaped:
        events = [re.sub('(?<=: ")[^"]*(?="}}]})', lambda part: "".join(f"\\u{ord(one):04x}" for one in part[0]), one) for one in events]  # fmt: skip
    return "".join(f"data: {event}\n\n" for event in events).encode()


def said_in(pieces, name="content", index=0):
    events = [json.loads(line[6:]) for line in b"".join(pieces).decode().splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["delta"][name] for choice in choices)


@pytest.mark.parametrize("name", ["content", "arguments"])
@pytest.mark.parametrize("at", range(1, len(SECRET)))
def test_a_secret_cut_at_every_place_is_masked(name, at):
    stream = deltas(["The key is ", SECRET[:at], SECRET[at:], "."], name) + b"data: [DONE]\n\n"
    for cut in (1, 7, 64, len(stream)):
        masked = Masker([SECRET]).stream([stream[at : at + cut] for at in range(0, len(stream), cut)])
        said = said_in(masked, name)
        assert runs(SECRET, said) == []
        assert said.startswith("The key is ")
        assert b"".join(masked).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("size", [1, 2, 5, 17])
@pytest.mark.parametrize("write", [str, lambda text: quote(text, safe="")], ids=["plain", "percent"])
@pytest.mark.parametrize("escaped", [False, True], ids=["", "in escapes"])
def test_a_secret_that_many_events_share_is_masked_and_the_rest_stays(size, write, escaped):
    text = f"Look: {write(SECRET)} (key)"
    masked = Masker([SECRET]).stream([deltas([text[at : at + size] for at in range(0, len(text), size)], escaped=escaped)])  # fmt: skip
    said = said_in(masked)
    assert (said[:6], said[-6:]) == ("Look: ", " (key)")
    assert runs(SECRET, said) == []
    assert {json.loads(line[6:])["id"] for line in masked[0].decode().splitlines() if line} == {"c1"}


def test_two_choices_that_are_written_at_the_same_time_are_told_apart():
    both = [
        json.dumps({"choices": [{"index": index, "delta": {"content": SECRET[at : at + 4]}}]})
        for at in range(0, len(SECRET), 4)
        for index in (0, 1)
    ]
    masked = Masker([SECRET]).stream(["".join(f"data: {event}\n\n" for event in both).encode()])
    assert [said_in(masked, index=index) for index in (0, 1)] == ["***", "***"]


@pytest.mark.parametrize("surface", ["responses", "messages"])
def test_the_events_of_every_api_are_read(surface):
    if surface == "responses":
        events = [{"type": "response.output_text.delta", "output_index": 1, "delta": part} for part in (SECRET[:9], SECRET[9:])]  # fmt: skip
    else:
        events = [{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": part}} for part in (SECRET[:4], SECRET[4:])]  # fmt: skip
    stream = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()
    masked = Masker([SECRET]).stream([stream])
    assert runs(SECRET, "".join(re.findall('"(?:delta|text)":"([^"]*)"', masked[0].decode()))) == []
    assert masked[0].count(b"event: ") == 2


def test_a_stream_without_secrets_keeps_its_pieces_and_its_bytes():
    pieces = [b"data: \xff", b"\xfe\n\nda", b'ta: {"a" :  1}\r\n: comment\r\n\r\n']
    assert Masker([SECRET]).stream(pieces) == pieces


def test_an_event_that_is_nested_too_deep_is_masked_as_text():
    (masked,) = Masker([SECRET]).stream(
        [b'data: {"a": ' + b"[" * 900 + json.dumps(SECRET).encode() + b"]" * 900 + b"}"]
    )
    assert runs(SECRET, masked.decode()) == []


def test_words_are_masked_only_within_the_secret():
    masker = Masker(["my-content-assistant"])
    assert masker.text('{"role":"assistant","content":"my-content-assistant"}') == '{"role":"assistant","content":"***"}'  # fmt: skip


def test_a_part_that_names_have_as_well_stays():
    masker = Masker(["notes-Kq8d7Fh2mZ"], names=["x-notes-token"])
    assert masker.text("x-notes-token: notes-Kq8d7Fh2mZ, or -Kq8d7F") == "x-notes-token: ***, or ***"


@pytest.mark.parametrize("secrets", [[], [""], ["short"]])
def test_a_placeholder_masks_nothing(secrets):
    assert Masker(secrets).value({"short": ["short", "a text", 5, None]}) == {"short": ["short", "a text", 5, None]}


def test_random_secrets_anywhere_in_random_json():
    dice = random.Random(5)
    alphabet = string.ascii_letters + string.digits + '-_+/="\\'

    def tree(secrets, depth):
        match dice.randrange(5 if depth else 2):
            case 0:
                return "x " + dice.choice(secrets) + " y"
            case 1:
                return dice.choice(secrets)[dice.randrange(4) :]
            case 2:
                return {f"k{n} {dice.choice(secrets)}": tree(secrets, depth - 1) for n in range(3)}
            case 3:
                return [tree(secrets, depth - 1) for _ in range(3)]
        return 5

    for _ in range(40):
        secrets = ["".join(dice.choices(alphabet, k=dice.randint(12, 40))) for _ in range(3)]
        masked = Masker(secrets).value(tree(secrets, 4))
        assert [run for secret in secrets for run in runs(secret, str(masked))] == []
