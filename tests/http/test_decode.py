"""Compressed bodies, in pieces."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.http.decode import PIECE, Inflater


def bare_deflate(data):
    """Without the head of zlib's format, as some servers send it."""
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


BOMB = gzip.compress(b"0" * 20_000_000)


@pytest.mark.parametrize("coding", ["", "identity", " Identity "])
def test_what_is_not_compressed_stays_as_it_is(coding):
    inflater = Inflater(coding)
    assert list(inflater.feed(b"fine")) == [b"fine"]
    inflater.close()


@pytest.mark.parametrize(
    ("coding", "compress"),
    [("gzip", gzip.compress), ("X-GZIP", gzip.compress), ("deflate", zlib.compress), ("deflate", bare_deflate)],
)
@given(data=st.binary(max_size=2000), cut=st.integers(1, 50))
def test_any_cut_of_the_bytes_gives_the_same_data(coding, compress, data, cut):
    raw, inflater = compress(data), Inflater(coding)
    parts = [raw[at : at + cut] for at in range(0, len(raw), cut)]
    assert b"".join(piece for part in parts for piece in inflater.feed(part)) == data
    inflater.close()


def test_a_bomb_goes_off_in_small_pieces():
    sizes = [len(piece) for piece in Inflater("gzip").feed(BOMB)]
    assert (max(sizes), sum(sizes)) == (PIECE, 20_000_000)


def test_what_follows_the_end_does_not_count():
    inflater = Inflater("gzip")
    assert b"".join(inflater.feed(gzip.compress(b"fine") + b"more")) == b"fine"
    assert list(inflater.feed(b"and more")) == []


def test_a_coding_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="not understood"):
        Inflater("br")


def test_what_is_not_what_it_says_is_refused():
    with pytest.raises(ValueError, match="cannot be unpacked"):
        list(Inflater("gzip").feed(b"not gzip at all"))


def test_a_body_that_ends_early_is_refused():
    inflater = Inflater("gzip")
    list(inflater.feed(gzip.compress(b"fine")[:-3]))
    with pytest.raises(ValueError, match="broke off"):
        inflater.close()
