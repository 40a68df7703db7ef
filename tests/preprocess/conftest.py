"""The text side of the built-in model and of SmolLM2 (wants `headrace models install smollm2`)."""

from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.chassis.config import default_home
from headrace.models import reference
from headrace.models.repository import Repository
from headrace.preprocess.text_models import TextModel, TextModels


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    reference.install(folder)
    return folder


@pytest.fixture(scope="session")
def texts(home: Path) -> TextModels:
    return TextModels(Repository(home))


@pytest.fixture(scope="session")
def smollm2() -> TextModel:
    return TextModels(Repository(default_home())).load("smollm2")


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer_provider(spans: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider
