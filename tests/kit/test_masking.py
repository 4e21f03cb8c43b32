"""Secrets in text, pieces and JSON: no six characters of one stay, and everything else does."""

import json
import random
import string
from urllib.parse import quote

import pytest

from proxy.kit.masking import RUN, Masker

SECRET = "sk-proj-A1b2/C3+d4=zzXY_9876543210"
ODD = 'p"ass\\word é\n+/%&9'


def runs(secret, text):
    return [secret[at : at + RUN] for at in range(len(secret) - RUN + 1) if secret[at : at + RUN] in text]


@pytest.mark.parametrize("secret", [SECRET, ODD])
@pytest.mark.parametrize(
    "write",
    [
        lambda secret: f"key {secret} end",
        lambda secret: json.dumps({"a": secret}),
        lambda secret: json.dumps({"a": json.dumps({"b": [secret]})}),
        lambda secret: json.dumps({"a": json.dumps({"b": json.dumps({"c": secret}, ensure_ascii=False)})}),
        lambda secret: json.dumps({"a": "".join(f"\\u{ord(one):04x}" for one in secret)}).replace("\\\\u", "\\u"),
        lambda secret: f"https://a.example/?key={quote(secret, safe='')}&b=1",
        lambda secret: "".join(f"%{byte:02X}" for byte in secret.encode()),
        lambda secret: f"wrong key: {secret[3:11]}...",
    ],
    ids=["plain", "json", "json-in-json", "three-deep", "escapes", "url", "percent", "part"],
)
def test_a_secret_is_masked_however_it_is_written_and_json_stays_json(secret, write):
    text = write(secret)
    masked = Masker([secret]).text(text)
    assert len(masked.encode()) == len(text.encode())
    decoded = masked
    for _ in range(4):
        assert runs(secret, decoded) == []
        try:
            decoded = next(iter(json.loads(decoded).values()))
        except (ValueError, AttributeError):
            break
        decoded = decoded[0] if isinstance(decoded, list) else decoded
    assert text.startswith("{") == masked.startswith("{")


def deltas(parts, name="content"):
    events = [json.dumps({"choices": [{"index": 0, "delta": {name: part}}]}) for part in parts]
    return "".join(f"data: {event}\n\n" for event in events).encode()


@pytest.mark.parametrize("size", [1, 2, 5, 17])
@pytest.mark.parametrize("name", ["content", "arguments"])
def test_a_secret_that_events_or_pieces_share_is_masked_in_each(size, name):
    stream = deltas([SECRET[at : at + size] for at in range(0, len(SECRET), size)], name)
    for cut in (1, 7, 64, len(stream)):
        pieces = [stream[at : at + cut] for at in range(0, len(stream), cut)]
        masked = Masker([SECRET]).pieces(pieces)
        assert [*map(len, masked)] == [*map(len, pieces)]
        events = [json.loads(line[6:]) for line in b"".join(masked).decode().splitlines() if line]
        said = "".join(event["choices"][0]["delta"][name] for event in events)
        assert runs(SECRET, said) == []
        assert len(said) == len(SECRET)


def test_two_choices_that_are_written_at_the_same_time_are_told_apart():
    both = [
        json.dumps({"choices": [{"index": index, "delta": {"content": SECRET[at : at + 4]}}]})
        for at in range(0, len(SECRET), 4)
        for index in (0, 1)
    ]
    (masked,) = Masker([SECRET]).pieces(["".join(f"data: {event}\n\n" for event in both).encode()])
    events = [json.loads(line[6:])["choices"][0] for line in masked.decode().splitlines() if line]
    for index in (0, 1):
        assert runs(SECRET, "".join(one["delta"]["content"] for one in events if one["index"] == index)) == []


def test_bytes_that_are_no_text_come_back_as_they_were():
    pieces = [b"\xff\xfe" + SECRET[:9].encode(), SECRET[9:].encode() + b"\xc3", b"\xa9 end"]
    masked = Masker([SECRET]).pieces(pieces)
    assert (masked[0][:2], masked[1][-1:], masked[2]) == (b"\xff\xfe", b"\xc3", b"\xa9 end")
    assert runs(SECRET, b"".join(masked).decode("latin-1")) == []


def test_numbers_stay_numbers():
    masker = Masker(["key-1795699778206"])
    assert masker.text('{"created": 1795699778, "n": 12}') == '{"created": 9999999999, "n": 12}'
    assert masker.value({"created": 1795699778, "ok": True, "x": 1.5, "y": None}) == {"created": 9999999999, "ok": True, "x": 1.5, "y": None}  # fmt: skip
    assert Masker(["key-9999991234"]).text("999999 0") != "999999 0"


def test_words_of_the_apis_are_masked_only_within_the_secret():
    masker = Masker(["my-content-assistant"])
    assert masker.text('{"role":"assistant","content":"my-content-assistant"}') == '{"role":"assistant","content":"xxxxxxxxxxxxxxxxxxxx"}'  # fmt: skip


@pytest.mark.parametrize("secrets", [[], [""], ["short"]])
def test_what_is_no_secret_masks_nothing(secrets):
    assert Masker(secrets).value({"short": ["short", "a text"]}) == {"short": ["short", "a text"]}


def test_keys_of_objects_are_masked_too():
    assert Masker([SECRET]).value({SECRET: 1}) == {"x": 1} or runs(SECRET, str(Masker([SECRET]).value({SECRET: 1}))) == []  # fmt: skip


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
                return {f"k{n}": tree(secrets, depth - 1) for n in range(3)}
            case 3:
                return [tree(secrets, depth - 1) for _ in range(3)]
        return json.dumps(tree(secrets, depth - 1), ensure_ascii=dice.random() < 0.5)

    for _ in range(40):
        secrets = ["".join(dice.choices(alphabet, k=dice.randint(12, 40))) for _ in range(3)]
        text = json.dumps(tree(secrets, 4))
        masker = Masker(secrets)
        for masked in (masker.text(text), json.dumps(masker.value(json.loads(text)))):
            json.loads(masked)
            views = [masked]
            while "\\" in views[-1]:
                views.append(views[-1].replace("\\\\", "\0").replace('\\"', '"').replace("\0", "\\"))
                if len(views) > 6:
                    break
            assert [run for secret in secrets for view in views for run in runs(secret, view)] == []
