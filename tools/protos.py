"""Generates the stubs in src/headrace/api from protos/, and checks them.

    python tools/protos.py generate     # write the stubs
    python tools/protos.py check        # stubs equal what protos/ gives; buf lint; buf breaking against the base

The virtual path headrace/api=protos makes file names and imports come out right, so that nothing is edited afterwards.
"""

import filecmp
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
API = ROOT / "src" / "headrace" / "api"
BUF_CONFIG = """version: v2
modules:
  - path: .
lint:
  use: [STANDARD]
  except: [PACKAGE_DIRECTORY_MATCH]  # files stand at headrace/api/<service>/v1, packages leave out api
  ignore: [headrace/api/inference]  # a public specification's names
breaking:
  use: [WIRE_JSON]
"""


def generate(destination: Path) -> None:
    """Writes stubs and their .pyi files under destination/headrace/api."""
    files = [f"headrace/api/{path.relative_to(PROTOS)}" for path in sorted(PROTOS.rglob("*.proto"))]
    outputs = [f"--{kind}_out={destination}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path=headrace/api={PROTOS}", *outputs, *files], check=True
    )
    api = destination / "headrace" / "api"
    for folder in [api, *(path for path in api.rglob("*") if path.is_dir())]:
        (folder / "__init__.py").write_text('"""Generated from protos/ by tools/protos.py; do not edit."""\n')


def stale_files() -> list[str]:
    """Names of the stub files that differ from what protos/ gives, or stand on one side only."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = Path(folder) / "headrace" / "api"
        sides = [
            {str(p.relative_to(root)) for p in root.rglob("*.py*") if p.suffix in (".py", ".pyi")}
            for root in (fresh, API)
        ]
        differ = sides[0] ^ sides[1]
        return sorted(
            differ | {name for name in sides[0] & sides[1] if not filecmp.cmp(fresh / name, API / name, shallow=False)}
        )


def _buf_tree(source: Path, destination: Path) -> Path:
    shutil.copytree(source, destination / "headrace" / "api")
    (destination / "buf.yaml").write_text(BUF_CONFIG)
    return destination


def lint() -> int:
    """Runs buf lint."""
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(["buf", "lint"], cwd=_buf_tree(PROTOS, Path(folder))).returncode


def breaking(base: str) -> int:
    """Runs buf breaking against protos/ as of the git revision `base`; 0 where that revision has none."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", base, "protos"], cwd=ROOT, capture_output=True)
        if archive.returncode != 0:
            print(f"protos: no contract at {base} to compare with")
            return 0
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        old = _buf_tree(Path(folder) / "protos", Path(folder) / "old")
        new = _buf_tree(PROTOS, Path(folder) / "new")
        return subprocess.run(["buf", "breaking", "--against", str(old)], cwd=new).returncode


def base_revision() -> str:
    """The revision that the contract must stay compatible with: the newest release tag, else the last commit."""
    tag = subprocess.run(["git", "describe", "--tags", "--abbrev=0"], cwd=ROOT, capture_output=True, text=True)
    return tag.stdout.strip() if tag.returncode == 0 else "HEAD"


def main() -> int:
    if sys.argv[1:] == ["generate"]:
        with tempfile.TemporaryDirectory() as folder:
            generate(Path(folder))
            shutil.rmtree(API, ignore_errors=True)
            shutil.copytree(Path(folder) / "headrace" / "api", API)
        return 0
    if sys.argv[1:] == ["check"]:
        stale = stale_files()
        for name in stale:
            print(f"stale stub: src/headrace/api/{name} (run: make protos)")
        return 1 if stale else lint() or breaking(base_revision())
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
