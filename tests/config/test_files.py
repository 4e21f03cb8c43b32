"""The files of a configuration, where they are no files: nothing waits for them, and the fault says what they are."""

import os

import pytest

from proxy.app.configuration import load
from proxy.config.files import read_file
from proxy.server.reload import FileWatch
from proxy.wire.errors import ConfigurationError

CONFIG = "clients_file: clients.yaml\nupstreams: {up: {base_url: 'http://up', api_key: k}}\nmodels: {m: {upstream: up}}"
WRONG = {
    "fifo": (os.mkfifo, "it is a pipe or a device, not a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is a pipe or a device, not a regular file"),
    "large": (lambda path: path.write_bytes(b"#" * (16 * 1024 * 1024 + 1)), "it has more than 16 MiB"),
}


@pytest.fixture
def place(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / ".env").write_text("A=b\n")
    (tmp_path / "clients.yaml").write_text("[{name: a, key: the-key-of-a}]")
    return tmp_path


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", ["config.yaml", ".env", "clients.yaml"])
def test_a_fifo_a_device_or_a_huge_file_is_a_fault_and_nothing_waits_for_it(place, name, wrong):
    become, why = WRONG[wrong]
    assert load(place / "config.yaml", {}, env_file=place / ".env").config.clients
    watch = FileWatch(place / name)
    (place / name).unlink()
    become(place / name)
    with pytest.raises(ConfigurationError) as fault:
        load(place / "config.yaml", {}, env_file=place / ".env")
    assert f"{name}: cannot be read: {why}" in str(fault.value)
    assert [watch.look() for _ in range(3)] == [None, "changed", None]  # so that the fault is told


def test_a_regular_file_is_read_through_a_link(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 16 * 1024 * 1024)
    (tmp_path / "link").symlink_to("file")
    assert len(read_file(tmp_path / "link")) == 16 * 1024 * 1024
