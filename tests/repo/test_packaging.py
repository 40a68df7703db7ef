"""What is shipped: the wheel's content, the links that make the import namespace, and light imports of each service."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = ROOT / "src" / "headrace"
LINKS = sorted(path for path in NAMESPACE.iterdir() if path.is_symlink())

HEAVY = {"openvino", "openvino_genai", "openvino_tokenizers", "tokenizers", "jinja2", "gguf", "safetensors"}
HEAVY |= {"uvicorn", "starlette", "huggingface_hub", "transformers", "torch", "onnxruntime", "typer", "rich"}
HEAVY |= {"onnx", "ml_dtypes", "tensorrt", "tensorrt_rtx", "pynvml"}
SERVICES = {"gateway", "scheduler", "executor", "preprocess"}
NEEDS = {"gateway": set(), "scheduler": set(), "executor": set(), "preprocess": {"tokenizers", "jinja2"}}
"""The heavy libraries that a service may import to start. An engine's own stand in its module, loaded by name."""
LAZY = {
    "headrace.executor.backends.torch_native",
    "headrace.executor.engines.openvino",
    "headrace.executor.engines.openvino_encoder",
    "headrace.executor.engines.packed_graph",
    "headrace.executor.engines.torch_engine",
    "headrace.executor.engines.torch_experts",
    "headrace.executor.engines.torch_kv",
    "headrace.executor.tensorrt.engines",
    "headrace.executor.tensorrt.graph",
    "headrace.gateway.openai.admitting",
    "headrace.gateway.openai.app",
    "headrace.gateway.openai.routes",
    "headrace.gateway.openai.server",
    "headrace.preprocess.screen.encoder",
    "headrace.preprocess.screen.minilm",
}

IMPORT_ALL = """
import importlib, pkgutil, sys

package, blocked, left_out = sys.argv[1], set(sys.argv[2].split(",")), set(sys.argv[3].split(","))


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ImportError(f"{name} is blocked")


sys.meta_path.insert(0, Blocker())
root = importlib.import_module(package)
for module in pkgutil.walk_packages(root.__path__, package + "."):
    if module.name not in left_out and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(*sorted({".".join(name.split(".")[:2]) for name in sys.modules if name.startswith("headrace.")}))
"""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def repository_files() -> list[str]:
    """What a clone would have, with what is new and not ignored."""
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    return [name for name in listed if name and ((ROOT / name).is_file() or (ROOT / name).is_symlink())]


def shipped_files() -> set[str]:
    """The wheel's names of the code and data that stand in the packages."""
    packages = {link.name for link in LINKS}
    own = {f"headrace/{name}" for name in repository_files() if name.partition("/")[0] in packages}
    own |= {name.removeprefix("src/") for name in repository_files() if name.startswith("src/")}
    return {name for name in own if Path(name).suffix in {".py", ".pyi", ".typed", ".txt", ".toml", ".npz"}}


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An sdist of a clean copy of the tree, and the wheel that is built from the sdist alone."""
    copy, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for name in repository_files():
        source, target = ROOT / name, copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        else:
            target.write_bytes(source.read_bytes())
    build = f"from setuptools import build_meta; print(build_meta.build_sdist({str(out)!r}))"
    run(sys.executable, "-c", build, cwd=copy)
    (sdist,) = out.glob("*.tar.gz")
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, "-w", out, sdist, cwd=out)
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


def test_the_wheel_has_every_package_and_nothing_else(artefacts: tuple[Path, Path]) -> None:
    names = {name for name in zipfile.ZipFile(artefacts[1]).namelist() if not name.endswith("/")}
    metadata = {name for name in names if name.partition("/")[0].endswith(".dist-info")}
    assert {name.partition("/")[0] for name in names - metadata} == {"headrace"}
    assert names - metadata == shipped_files()


def test_the_sdist_can_be_built_again(artefacts: tuple[Path, Path]) -> None:
    with tarfile.open(artefacts[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/headrace/py.typed"} <= names


def test_the_wheel_names_the_command(artefacts: tuple[Path, Path]) -> None:
    wheel = zipfile.ZipFile(artefacts[1])
    (points,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "headrace = headrace.cli.main:main" in wheel.read(points).decode()


def test_each_link_is_named_for_its_folder() -> None:
    assert {link.name: link.readlink() for link in LINKS} == {link.name: Path("../..") / link.name for link in LINKS}
    assert all((ROOT / link.name / "__init__.py").is_file() for link in LINKS)


def test_each_package_has_its_link() -> None:
    packages = {name.partition("/")[0] for name in repository_files() if name.count("/") == 1 and "__init__.py" in name}
    assert packages == {link.name for link in LINKS}


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_a_service_needs_no_library_of_the_others(service: str) -> None:
    blocked = ",".join(HEAVY - NEEDS[service])
    imported = run(sys.executable, "-c", IMPORT_ALL, f"headrace.{service}", blocked, ",".join(LAZY)).split()
    assert f"headrace.{service}" in imported
    assert not {f"headrace.{other}" for other in SERVICES - {service}} & set(imported)


def test_the_client_needs_no_library_of_the_services() -> None:
    imported = run(sys.executable, "-c", IMPORT_ALL, "headrace.client", ",".join(HEAVY), "").split()
    assert not {f"headrace.{service}" for service in SERVICES} & set(imported)


def test_imports_keep_their_contracts() -> None:
    run("lint-imports", "--no-cache")
