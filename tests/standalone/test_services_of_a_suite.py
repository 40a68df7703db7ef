"""Which services a layout has, who is told whose address, which error the user sees."""

import subprocess
import sys
from typing import Any

import pytest

from headrace.chassis.config import Settings, load_settings
from headrace.core.errors import ConfigError, HeadraceError, ModelNotFound
from headrace.standalone.services import CALLED_BY_OTHERS, Service, cause, layout, wired


def settings(**sections: dict[str, Any]) -> Settings:
    return load_settings(overrides=sections)


def test_preprocess_runs_only_where_the_gateway_uses_the_one_configured() -> None:
    without = [Service.SCHEDULER, Service.EXECUTOR, Service.GATEWAY]
    own = settings(gateway={"preprocess": "127.0.0.1:9001"}, preprocess={"listen": "127.0.0.1:9001"})
    assert layout(settings()) == without
    assert layout(settings(gateway={"preprocess": "elsewhere:9001"})) == without
    assert layout(own) == [Service.SCHEDULER, Service.EXECUTOR, Service.PREPROCESS, Service.GATEWAY]


def test_a_bound_address_is_told_to_all_that_call_it() -> None:
    told = wired(settings(), Service.SCHEDULER, "127.0.0.1:5001")
    told = wired(told, Service.PREPROCESS, "127.0.0.1:5002")
    assert (told.gateway.scheduler, told.executor.scheduler) == ("127.0.0.1:5001", "127.0.0.1:5001")
    assert told.gateway.preprocess == "127.0.0.1:5002"
    assert told.gateway.listen == settings().gateway.listen


@pytest.mark.parametrize("service", [service for service in Service if service not in CALLED_BY_OTHERS])
def test_nobody_is_told_of_the_others(service: Service) -> None:
    assert wired(settings(), service, "127.0.0.1:5001") == settings()


def test_settings_reach_a_child_as_they_are() -> None:
    own = settings(executor={"models": ["a", "b"]}, models={"home": "/some/where"})
    assert Settings.model_validate_json(own.model_dump_json()) == own


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ConfigError("plain"), "plain"),
        (ExceptionGroup("tasks", [ValueError("ours"), ExceptionGroup("inner", [ModelNotFound("deep")])]), "deep"),
    ],
)
def test_the_error_for_the_user_is_found_in_groups(error: Exception, message: str) -> None:
    found = cause(error)
    assert isinstance(found, HeadraceError)
    assert found.message == message


def test_a_fault_of_ours_stays_one() -> None:
    assert cause(ExceptionGroup("tasks", [ValueError("ours")])) is None


def test_a_service_does_not_load_what_only_another_needs() -> None:
    code = (
        "import sys; from headrace.standalone import process; import headrace.scheduler.app; "
        "print([name for name in ('openvino', 'tokenizers', 'jinja2', 'rich', 'typer') if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
