"""`headrace keys new`, and a key where commands look for it."""

import pytest
from typer.testing import CliRunner

from headrace.chassis.config import TenantQuota
from headrace.cli.main import app
from headrace.core.errors import InvalidRequest, Unavailable
from headrace.gateway.tenants.key import digest
from headrace.gateway.tenants.key_file import read_callers


@pytest.mark.parametrize("name", ["mills", "a.b"])
def test_a_new_key_opens_with_the_lines_that_come_with_it(tmp_path, name):
    shown = CliRunner().invoke(app, ["keys", "new", name])
    assert shown.exit_code == 0
    key, lines = shown.output.split("\n", 1)
    path = tmp_path / "keys.toml"
    path.write_text(lines)
    assert read_callers(path, TenantQuota()).by_digest[digest(key)].tenant == name
    assert key not in lines


def test_a_name_that_no_tenant_can_have_is_refused():
    shown = CliRunner().invoke(app, ["keys", "new", "a b"])
    assert isinstance(shown.exception, InvalidRequest)


@pytest.mark.parametrize(
    "command", [["generate", "x"], ["embed", "x"], ["rerank", "x", "y"], ["classify", "x"], ["results", "list"]]
)
def test_commands_take_the_key_from_the_environment(command, monkeypatch):
    asked = []

    def metadata(tenant, api_key=None):
        asked.append(api_key)
        return ()

    for client in ("streaming", "blocking"):
        monkeypatch.setattr(f"headrace.client.{client}.metadata", metadata)
    model = ["--model", "m"] if command[0] == "classify" else []
    shown = CliRunner().invoke(app, [*command, *model, "--address", "127.0.0.1:1"], env={"HEADRACE_API_KEY": "hr_k"})
    assert isinstance(shown.exception, Unavailable)
    assert set(asked) == {"hr_k"}
