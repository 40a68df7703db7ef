"""The settings of precisions: what an executor takes, and which executors a suite has."""

from pathlib import Path

import pytest

from headrace.chassis.config import Settings, load_settings
from headrace.core.errors import ConfigError, EngineNotReady
from headrace.core.request import Precision
from headrace.executor.engines.registry import load_engine, served
from headrace.models import reference
from headrace.standalone.services import Service, parts


def settings_of(home: Path, precision: str, **executor: object) -> Settings:
    sections = {"models": {"home": home}, "executor": {"precision": precision, **executor}, "encoder": {"model": ""}}
    return load_settings(overrides=sections)


def test_an_executor_serves_one_precision_and_only_what_is_there(tmp_path: Path) -> None:
    entry = reference.install(tmp_path)
    own = settings_of(tmp_path, "own", engine="reference").executor
    assert load_engine(own, entry).spec.precision is Precision.FP32
    several = settings_of(tmp_path, "int8,fp32").executor
    with pytest.raises(ConfigError, match="one precision an executor"):
        served(several, entry)
    with pytest.raises(EngineNotReady, match="headrace models add reference --precision bf16"):
        served(settings_of(tmp_path, "bf16").executor, entry)


def test_parts_of_a_suite(tmp_path: Path) -> None:
    one = settings_of(tmp_path, "fp32")
    assert [part.name for part in parts(one)] == ["scheduler", "executor", "gateway"]
    assert parts(one)[1].settings(one).executor == one.executor
    several = settings_of(tmp_path, "fp32,int8,fp32", listen="127.0.0.1:8472", advertise="here:1")
    metered = several.telemetry.model_copy(update={"metrics_listen": "127.0.0.1:9000"})
    several = several.model_copy(update={"telemetry": metered})
    executors = [part for part in parts(several) if part.service is Service.EXECUTOR]
    assert [part.name for part in executors] == ["executor-fp32", "executor-int8"]
    first, second = (part.settings(several) for part in executors)
    assert [each.executor.precision for each in (first, second)] == [("fp32",), ("int8",)]
    assert (first.executor.listen, first.executor.advertise) == ("127.0.0.1:8472", "here:1")
    assert (second.executor.listen, second.executor.advertise) == ("127.0.0.1:0", "")
    ports = [part.settings(several).telemetry.metrics_listen for part in parts(several)]
    assert len(set(ports)) == len(ports)


@pytest.mark.parametrize("text", ["", "int4", "int8,fp64", "fp16"])
def test_a_precision_that_nobody_knows_is_a_fault_of_the_settings(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"executor\.precision"):
        settings_of(tmp_path, text)
