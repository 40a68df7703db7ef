"""Keys, tokens and passwords are in no log and no span; prompts are in spans only where the settings ask for it."""

import logging
from pathlib import Path
from typing import Any

import pytest

from headrace.client import AsyncClient, Message
from headrace.core.errors import HeadraceError
from headrace.core.role import Role
from headrace.gateway.tenants.key import digest, new_key
from headrace.models import reference
from headrace.standalone.single import running
from headrace.standalone.spans import collector

ANY_PORT = "127.0.0.1:0"
PROMPT = "a secret of mine"
PASSWORD = "hunter2-of-redis"


@pytest.mark.parametrize("asked_for", [False, True])
async def test_what_is_told(
    asked_for: bool,
    tmp_path: Path,
    folder: Path,
    settings_of_suite: Any,
    secure: Any,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    key, unknown = new_key(), new_key()
    token = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJtaWxscyJ9.c2lnbmF0dXJl"
    keys_file, database = tmp_path / "keys.toml", tmp_path / "told.sqlite"
    keys_file.write_text(f'[tenant.mills]\nkey_sha256 = ["{digest(key)}"]\n')
    tls, raised = secure(folder).tls, list[str]()
    async with collector(ANY_PORT, database, transport=secure(folder, Role.COLLECTOR)) as spans:
        settings = settings_of_suite(
            tmp_path,
            folder,
            telemetry={"endpoint": f"headrace://{spans}", "record_prompts": asked_for},
            tenants={"keys_file": keys_file, "redis": f"redis://:{PASSWORD}@127.0.0.1:1"},
        )
        async with running(settings) as suite:
            for secret in (key, unknown, token):
                async with AsyncClient(suite.gateway, tls=tls, api_key=secret, retries=0) as client:
                    for prompt in (PROMPT, [Message("user", PROMPT)], "x" * 5_000_000):
                        try:
                            await client.generate(reference.NAME, prompt, max_tokens=2, stop=[PROMPT])
                        except HeadraceError as error:
                            raised.append(repr(error))
    written = b"".join(path.read_bytes() for path in tmp_path.glob("told.sqlite*"))  # noqa: ASYNC240
    assert len(raised) == 7
    assert b"gateway.generate" in written
    output = capfd.readouterr()
    logs = caplog.text + output.out + output.err + "".join(raised)
    private = (folder / "gateway.key").read_text().splitlines()[1]
    for secret in (key, unknown, token, PASSWORD, private):
        assert secret not in logs
        assert secret.encode() not in written
    assert PROMPT not in logs
    assert (PROMPT.encode() in written) is asked_for
