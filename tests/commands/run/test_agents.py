"""What each agent is started with: whose model holds, and what of the user's settings stays."""

import os
import time
import tomllib
from functools import partial
from pathlib import Path

import orjson
import pytest

from proxy.commands.run.agent import ModelChoice, Setting
from proxy.commands.run.claude import CLAUDE
from proxy.commands.run.codex import CODEX
from proxy.commands.run.opencode import OPENCODE
from proxy.commands.run.place import keep_private
from proxy.wire.errors import ConfigurationError

LISTED = ("ours", "known", "openai/also")
URL, KEY = "http://127.0.0.1:1234", "tp_key"


@pytest.fixture
def launch(tmp_path):
    """Launches an agent with arguments, an environment, and files of settings below the home or the project."""

    def launched(agent, *arguments, model=None, files=None, listed=LISTED, is_of_run=False, **environ):
        for name, content in (files or {}).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content if isinstance(content, str) else orjson.dumps(content).decode())
        first = listed[0] if listed else None
        known = [*LISTED, "family-9"]
        models = ModelChoice(model or first, listed, is_demanded=model is not None, knows=known.__contains__)
        (tmp_path / "project").mkdir(exist_ok=True)
        setting = Setting(
            arguments=arguments,
            environ={"HOME": str(tmp_path / "home"), **environ},
            directory=tmp_path / "project",
            url=URL,
            key=KEY,
            models=models,
            keep_private=partial(keep_private, tmp_path, 1),
            is_of_run=is_of_run,
        )
        launch = agent.launch(setting)
        return launch.arguments, launch.environ, models.replaced

    return launched


def claude_settings(arguments):
    at = arguments.index("--settings") + 1
    text = arguments[at] if arguments[at].startswith("{") else Path(arguments[at]).read_text()
    return orjson.loads(text), [*arguments[: at - 1], *arguments[at + 1 :]]


def codex_settings(arguments):
    at = next((at for at in range(0, len(arguments), 2) if arguments[at] != "-c"), len(arguments))
    said = tomllib.loads("\n".join(arguments[1:at:2]))
    return said, arguments[at:]


ROLES = ["OPUS", "SONNET", "HAIKU", "FABLE"]
ALL = ["ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{role}_MODEL" for role in ROLES)]
ALL += ["ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"]


def test_claude_gets_address_key_and_our_model_for_every_role_by_its_process_and_its_settings(launch):
    files = {"home/.claude/settings.json": {"env": {"ANTHROPIC_BASE_URL": "http://elsewhere", "MINE": "1"}}}
    elsewhere = {"ANTHROPIC_API_KEY": "k", "CLAUDE_CODE_USE_BEDROCK": "1", "MORE": "2"}
    arguments, environ, replaced = launch(CLAUDE, "-p", "hello", files=files, **elsewhere)
    settings, rest = claude_settings(arguments)
    assert rest == ["-p", "hello"]
    assert replaced == []
    assert environ["ANTHROPIC_AUTH_TOKEN"] == KEY
    assert KEY not in str(arguments), "everybody on this machine may read a command line"
    assert environ["MORE"] == "2"
    assert not environ.keys() & {"ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK"}
    for said in (environ, settings["env"]):
        assert said["ANTHROPIC_BASE_URL"] == URL
        assert {said[name] for name in ALL} == {"ours"}
    assert "127.0.0.1" in environ["NO_PROXY"]
    assert {settings["env"][name] for name in elsewhere if name != "MORE"} == {""}


def test_claude_gets_the_key_by_a_file_of_its_own_where_a_settings_file_would_beat_the_process(launch):
    files = {
        "project/.claude/settings.local.json": {"env": {"ANTHROPIC_AUTH_TOKEN": "theirs"}, "apiKeyHelper": "a-command"}
    }
    arguments, _, _ = launch(CLAUDE, "--settings", '{"env": {"A": "b"}, "hooks": {}}', "-p", "x", files=files)
    settings, rest = claude_settings(arguments)
    assert rest == ["-p", "x"]
    assert settings["env"]["ANTHROPIC_AUTH_TOKEN"] == KEY
    assert (settings["env"]["A"], settings["hooks"], settings["apiKeyHelper"]) == ("b", {}, "")
    assert KEY not in str(arguments)


def test_secrets_of_a_settings_file_that_the_user_names_do_not_get_into_the_command_line(launch):
    files = {"project/mine.json": {"env": {"DATABASE_PASSWORD": "hunter22"}}}
    arguments, _, _ = launch(CLAUDE, "--settings", "mine.json", files=files)
    assert "hunter22" not in str(arguments)
    assert claude_settings(arguments)[0]["env"]["DATABASE_PASSWORD"] == "hunter22"


@pytest.mark.parametrize(
    ("words", "environ", "settings", "main", "replaced"),
    [
        ([], {"ANTHROPIC_MODEL": "known"}, {}, "known", 0),
        ([], {"ANTHROPIC_MODEL": "known"}, {"env": {"ANTHROPIC_MODEL": "family-9"}}, "family-9", 0),
        ([], {}, {"model": "known"}, "known", 0),
        ([], {}, {"model": "opus"}, "opus", 0),
        ([], {}, {"model": "known[1m]"}, "known[1m]", 0),
        ([], {}, {"model": "claude-opus-9"}, "ours", 1),
        (["--model", "known", "-p"], {}, {}, "known", 0),
        (["--model=claude-opus-9", "-p"], {}, {}, "ours", 1),
        (["-p", "--", "--model", "no-option"], {}, {}, "ours", 0),
    ],
)
def test_claude_keeps_a_model_of_the_users_that_the_proxy_knows(launch, words, environ, settings, main, replaced):
    files = {"home/.claude/settings.json": settings}
    arguments, environ, said = launch(CLAUDE, *words, files=files, **environ)
    said_by_settings, rest = claude_settings(arguments)
    assert said_by_settings["env"]["ANTHROPIC_MODEL"] == environ["ANTHROPIC_MODEL"] == main
    assert len(said) == replaced
    assert all("claude-opus-9" in sentence and "ours" in sentence for sentence in said)
    assert not any("claude-opus-9" in word for word in rest)
    assert environ["ANTHROPIC_DEFAULT_OPUS_MODEL"] == ("ours" if main == "opus" else main)


def test_claude_keeps_the_roles_that_the_user_has_given_to_known_models_unless_a_model_is_demanded(launch):
    users = {"ANTHROPIC_DEFAULT_HAIKU_MODEL": "known", "ANTHROPIC_DEFAULT_OPUS_MODEL": "unknown"}
    _, environ, replaced = launch(CLAUDE, **users)
    assert environ["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == environ["ANTHROPIC_SMALL_FAST_MODEL"] == "known"
    assert environ["ANTHROPIC_DEFAULT_OPUS_MODEL"] == "ours"
    assert len(replaced) == 1
    _, environ, replaced = launch(CLAUDE, model="openai/also", **users)
    assert {environ[name] for name in ALL} == {"openai/also"}
    assert len(replaced) == 2


def test_codex_gets_a_provider_by_arguments_before_its_own_and_the_key_by_a_variable(launch):
    files = {"home/.codex/config.toml": 'model_provider = "corp"\nreview_model = "gpt-9"\n'}
    arguments, environ, replaced = launch(
        CODEX, "exec", "--", "-m", files=files, NO_PROXY="intern", TOOLPROXY_KEY="old"
    )
    said, rest = codex_settings(arguments)
    provider = {
        "name": "toolproxy",
        "base_url": f"{URL}/v1",
        "wire_api": "responses",
        "env_key": "TOOLPROXY_KEY",
        "stream_max_retries": 3,
    }
    assert said == {
        "model_provider": "toolproxy",
        "model_providers": {"toolproxy": provider},
        "model": "ours",
        "review_model": "ours",
        "web_search": "live",
    }
    assert rest == ["exec", "--", "-m"]
    assert (environ["TOOLPROXY_KEY"], environ["NO_PROXY"]) == (KEY, "intern,127.0.0.1,localhost,::1")
    assert len(replaced) == 1
    assert KEY not in str(arguments)


def test_codex_keeps_what_the_user_has_set_of_its_web_search(launch):
    arguments, _, _ = launch(CODEX, files={"home/.codex/config.toml": 'web_search = "disabled"'})
    assert "web_search" not in codex_settings(arguments)[0]


@pytest.mark.parametrize(
    ("words", "config", "model", "rest"),
    [
        (["exec", "x"], 'model = "known"', "known", ["exec", "x"]),
        (["exec", "x"], 'model = "gpt-9"', "ours", ["exec", "x"]),
        (["exec", "x"], "is = no = toml", "ours", ["exec", "x"]),
        (["exec", "-m", "gpt-9"], "", "ours", ["exec", "-m", "ours"]),
        (["exec", "--model=known"], 'model = "gpt-9"', "known", ["exec", "--model=known"]),
        (["-c", "model=gpt-9", "exec"], "", "ours", ["-c", 'model="ours"', "exec"]),
        (["-c", 'model="known"'], "", "known", ["-c", 'model="known"']),
        (["-p", "mine"], 'model = "gpt-9"', "family-9", ["-p", "mine"]),
    ],
)
def test_codex_keeps_a_model_of_the_users_that_the_proxy_knows(launch, words, config, model, rest):
    files = {"elsewhere/config.toml": config, "elsewhere/mine.config.toml": 'model = "family-9"'}
    folder = launch(CODEX)[1]["HOME"].replace("home", "elsewhere")
    arguments, _, replaced = launch(CODEX, *words, files=files, CODEX_HOME=folder)
    said, _ = codex_settings(arguments[:8])
    assert (said["model"], arguments[8:]) == (model, rest)
    assert len(replaced) == ("gpt-9" in str((words, config)) and model == "ours")


IMAGES = {"input": ["text", "image"], "output": ["text"]}


def opencode_config(environ):
    return orjson.loads(environ["OPENCODE_CONFIG_CONTENT"])


def test_opencode_gets_a_provider_in_its_inline_configuration_which_keeps_the_users(launch):
    known = {"known": {"limit": {"context": 9}, "attachment": False}}
    ours = {"options": {"timeout": 9, "baseURL": "http://x"}, "models": known}
    inline = {"theme": "dark", "provider": {"mine": {}, "toolproxy": ours}}
    files = {
        "home/.config/opencode/opencode.json": '{// a comment\n"model": "anthropic/claude", "enabled_providers": ["anthropic"],}',
        "project/opencode.json": {
            "agent": {"build": {"model": "anthropic/opus"}, "plan": {"model": "toolproxy/known"}}
        },
    }
    arguments, environ, replaced = launch(
        OPENCODE, "run", "hello", files=files, OPENCODE_CONFIG_CONTENT=orjson.dumps(inline).decode()
    )
    config = opencode_config(environ)
    provider = config["provider"]["toolproxy"]
    assert arguments == ["run", "hello"]
    assert (config["theme"], config["provider"]["mine"]) == ("dark", {})
    assert provider["npm"] == "@ai-sdk/openai-compatible"
    assert provider["options"] == {"baseURL": f"{URL}/v1", "apiKey": KEY, "timeout": 9}
    assert provider["models"].keys() == set(LISTED)
    assert provider["models"]["ours"]["modalities"]["input"] == ["text", "image"]
    assert provider["models"]["known"] == {"limit": {"context": 9}, "attachment": False, "modalities": IMAGES}
    assert config["model"] == config["small_model"] == "toolproxy/ours"
    assert config["agent"] == {"build": {"model": "toolproxy/ours"}, "plan": {"model": "toolproxy/known"}}
    assert config["enabled_providers"] == ["anthropic", "toolproxy"]
    assert len(replaced) == 2


@pytest.mark.parametrize(
    ("words", "file", "model", "rest"),
    [
        ([], {"model": "toolproxy/known"}, "toolproxy/known", []),
        ([], {"model": "openai/also"}, "toolproxy/openai/also", []),
        ([], {"model": "toolproxy/family-9"}, "toolproxy/family-9", []),
        (["run", "-m", "known"], {}, "toolproxy/known", ["run", "-m", "toolproxy/known"]),
        (["run", "--model=anthropic/x"], {}, "toolproxy/ours", ["run", "--model=toolproxy/ours"]),
    ],
)
def test_opencode_keeps_a_model_of_the_users_that_the_proxy_knows(launch, words, file, model, rest):
    files = {"project/.opencode/opencode.jsonc": file}
    arguments, environ, _ = launch(OPENCODE, *words, files=files)
    config = opencode_config(environ)
    assert (config["model"], arguments) == (model, rest)
    assert model.removeprefix("toolproxy/") in config["provider"]["toolproxy"]["models"]


@pytest.mark.parametrize("agent", [CLAUDE, CODEX, OPENCODE])
def test_where_models_are_patterns_only_one_has_to_be_chosen(launch, agent):
    with pytest.raises(ConfigurationError, match="choose one with --model"):
        launch(agent, listed=())
    _, environ, replaced = launch(agent, "--model", "family-9", listed=())
    assert replaced == []
    assert "family-9" in str(environ) or agent is CODEX


HOSTILE = {
    "cut off": '{"env": {"ANTHROPIC_MODEL": "known"',
    "nested lists": "[" * 200_000,
    "nested objects": '{"a":' * 5_000,
    "nested as deep as can be read": '{"a":' * 1_000 + '{"model": "known"}' + "}" * 1_000,
    "escaped quotes": '{"a": "' + '\\"' * 400_000,
    "large": '{"model": "known", "a": "' + "x" * 1024 * 1024 + '"}',
    "half of a character": '{"model": "known", /* */ "a": "\\ud800"}',
    "no text": "\udcff\udcfe",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize(("agent", "name"), [(CLAUDE, ".claude/settings.json"), (OPENCODE, "opencode.json")])
def test_a_hostile_settings_file_of_the_folder_is_as_if_it_were_not_there(launch, tmp_path, agent, name, content):
    without = launch(agent)
    path = tmp_path / "project" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    began = time.monotonic()
    assert launch(agent) == without
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(("agent", "name"), [(CLAUDE, ".claude/settings.json"), (OPENCODE, "opencode.json")])
@pytest.mark.parametrize(
    "make",
    [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path), os.mkdir],
    ids=["pipe", "device", "loop of links", "folder"],
)
def test_settings_that_are_no_regular_file_are_neither_waited_for_nor_read(launch, tmp_path, agent, name, make):
    without = launch(agent)
    path = tmp_path / "project" / name
    path.parent.mkdir(exist_ok=True)
    make(path)
    assert launch(agent) == without


def test_a_text_that_no_process_can_be_given_is_not_taken_from_a_settings_file(launch):
    files = {"project/.claude/settings.json": {"env": {"no_proxy": "a\0b"}, "model": "known\0"}}
    arguments, environ, _ = launch(CLAUDE, files=files)
    assert environ["no_proxy"] == "127.0.0.1,localhost,::1"
    assert "\0" not in str([arguments, environ])


def test_settings_with_comments_and_last_commas_are_read(launch):
    text = '{"model": "known", // "model": "ours"\n "env": {"MINE": "http://x/*,]",}, /* } */}'
    arguments, _, _ = launch(CLAUDE, files={"project/.claude/settings.json": text})
    settings, _ = claude_settings(arguments)
    assert settings["env"]["ANTHROPIC_MODEL"] == "known"


def test_what_no_proxy_says_is_in_no_command_line(launch):
    arguments, environ, _ = launch(CLAUDE, NO_PROXY="internal.example")
    assert "internal.example" not in str(arguments)
    assert environ["NO_PROXY"] == "internal.example,127.0.0.1,localhost,::1"
    files = {"home/.claude/settings.json": {"env": {"NO_PROXY": "files.example"}}}
    arguments, environ, _ = launch(CLAUDE, files=files, NO_PROXY="internal.example")
    assert "example" not in str(arguments)
    settings, _ = claude_settings(arguments)
    assert settings["env"]["NO_PROXY"] == "files.example,127.0.0.1,localhost,::1"


def test_of_a_run_claude_may_use_its_search_beside_what_the_user_allows(launch):
    given = ["--settings", '{"permissions": {"allow": ["Read"], "deny": ["Bash"]}}']
    arguments, _, _ = launch(CLAUDE, *given, is_of_run=True)
    settings, _ = claude_settings(arguments)
    assert settings["permissions"] == {"allow": ["Read", "WebSearch"], "deny": ["Bash"]}
    arguments, _, _ = launch(CLAUDE)
    assert "permissions" not in claude_settings(arguments)[0]


def test_of_a_run_opencode_has_the_servers_tools_over_mcp(launch):
    _, environ, _ = launch(OPENCODE, is_of_run=True)
    [server] = orjson.loads(environ["OPENCODE_CONFIG_CONTENT"])["mcp"].values()
    assert server["url"] == f"{URL}/mcp"
    assert server["headers"] == {"Authorization": f"Bearer {KEY}"}
    assert "mcp" not in orjson.loads(launch(OPENCODE)[1]["OPENCODE_CONFIG_CONTENT"])
