"""Settings: which source wins, and that every fault is named at once."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.chassis.config import Settings, default_home, load_settings
from headrace.core.errors import ConfigError

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "headrace.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("HEADRACE_"):
            monkeypatch.delenv(name)


def faults(path: Path | None = None, overrides: dict[str, dict[str, Any]] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_settings(path, overrides)
    return sorted(line.partition(": ")[0] for line in caught.value.message.splitlines())


def test_nothing_said_is_the_defaults() -> None:
    assert load_settings() == Settings()
    assert load_settings().executor.models == ("smollm2",)


def test_a_file_sets_what_it_names_and_nothing_else(write: Write) -> None:
    settings = load_settings(write('[gateway]\nlisten = "0.0.0.0:1"\n[models]\nhome = "/there"'))
    assert (settings.gateway.listen, settings.models.home) == ("0.0.0.0:1", Path("/there"))
    assert settings.gateway.scheduler == Settings().gateway.scheduler


def test_the_environment_wins_over_the_file_and_overrides_over_both(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("[gateway]\nmax_requests = 1\nmax_queued_tokens = 1\nmax_queued_bytes = 1")
    monkeypatch.setenv("HEADRACE_GATEWAY__MAX_QUEUED_TOKENS", "2")
    monkeypatch.setenv("HEADRACE_GATEWAY__MAX_QUEUED_BYTES", "2")
    monkeypatch.setenv("HEADRACE_EXECUTOR__MODELS", '["a", "b"]')
    settings = load_settings(path, {"gateway": {"max_queued_bytes": 3}})
    own = settings.gateway
    assert (own.max_requests, own.max_queued_tokens, own.max_queued_bytes) == (1, 2, 3)
    assert settings.executor.models == ("a", "b")


@pytest.mark.parametrize(("value", "names"), [("a", ("a",)), ("a,b", ("a", "b")), ('["a"]', ("a",))])
def test_names_in_a_variable(monkeypatch: pytest.MonkeyPatch, value: str, names: tuple[str, ...]) -> None:
    monkeypatch.setenv("HEADRACE_EXECUTOR__MODELS", value)
    assert load_settings().executor.models == names


def test_every_fault_is_reported_at_once(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write('[gateway]\nlisten = "here"\nmax_request = 4\n[gatway]\n[scheduler]\nlease_ms = "soon"')
    monkeypatch.setenv("HEADRACE_EXECUTOR__ENGINE", "steam")
    monkeypatch.setenv("HEADRACE_EXECUTER__ENGINE", "openvino")
    monkeypatch.setenv("HEADRACE_EXECUTOR__ENGINES", "openvino")
    assert faults(path, {"transport": {"keepalive_ms": 999}, "nowhere": {"a": 1}}) == sorted(
        [
            "gateway.listen",
            "gateway.max_request",
            "gatway",
            "scheduler.lease_ms",
            "executor.engine",
            "executor.engines",
            "HEADRACE_EXECUTER__ENGINE",
            "transport.keepalive_ms",
            "nowhere",
        ]
    )


def test_a_fault_says_what_is_wrong(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"'here' is no HOST:PORT") as caught:
        load_settings(write('[gateway]\nlisten = "here"'))
    assert "gateway.listen" in caught.value.message


@pytest.mark.parametrize("text", ["[gateway", "gateway = 3", '[gateway]\nlisten = "\\q"'])
def test_a_file_that_is_no_settings(write: Write, text: str) -> None:
    assert faults(write(text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.toml"):
        load_settings(tmp_path / "nothing.toml")


def test_an_environment_value_that_is_no_json_hides_no_other_fault(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_EXECUTOR", '{"models')
    monkeypatch.setenv("HEADRACE_GATWAY__LISTEN", "127.0.0.1:1")
    with pytest.raises(ConfigError) as caught:
        load_settings(write("[scheduler]\nlease_ms = 1"))
    for words in ("executor: ", "HEADRACE_GATWAY__LISTEN", "scheduler.lease_ms"):
        assert words in caught.value.message


@pytest.mark.parametrize("address", ["", "host", ":80", "host:", "host:65536", "host:-1", "host:1x"])
def test_an_address_is_host_and_port(address: str) -> None:
    assert faults(None, {"scheduler": {"listen": address}}) == ["scheduler.listen"]


@pytest.mark.parametrize("address", ["127.0.0.1:0", "scheduler.headrace.svc:8471", "[::1]:65535"])
def test_addresses_of_all_sorts(address: str) -> None:
    assert load_settings(None, {"scheduler": {"listen": address}}).scheduler.listen == address


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load_settings().gateway.max_requests = 3  # type: ignore[misc]


def test_home_follows_the_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert default_home() == Path("/cache/headrace") == load_settings().models.home
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert default_home() == Path.home() / ".cache" / "headrace"
