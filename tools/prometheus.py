"""Brings Prometheus, Alertmanager and their checkers beside the environment's own programs, for tests that use them.

They come out of Debian's packages, unpacked and not installed: no service starts, nothing outside the environment
changes. Where apt-get is not there or has no such package, this says so and succeeds; those tests then skip.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

PROGRAMS = {
    "prometheus": ("prometheus", "promtool"),
    "prometheus-alertmanager": ("prometheus-alertmanager", "amtool"),
}
"""Of each package, what is taken."""
NEEDED = ("apt-get", "dpkg-deb")


def main() -> int:
    scripts = Path(sysconfig.get_path("scripts"))
    path = f"{scripts}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    missing = {
        package: programs
        for package, programs in PROGRAMS.items()
        if any(shutil.which(program, path=path) is None for program in programs)
    }
    if not missing:
        return 0
    if absent := [tool for tool in NEEDED if shutil.which(tool) is None]:
        print(f"without {' and '.join(absent)} tests with a Prometheus are skipped, unless it is installed otherwise")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        for package, programs in missing.items():
            archive = _downloaded(package, Path(folder))
            if archive is None:
                print(f"apt-get has no {package}: tests that need it are skipped")
                continue
            unpacked = Path(folder) / package
            subprocess.run(["dpkg-deb", "--extract", archive, unpacked], check=True)
            for program in programs:
                shutil.copy2(unpacked / "usr" / "bin" / program, scripts / program)
    return 0


def _downloaded(package: str, folder: Path) -> Path | None:
    """The package's archive; None where there is none to be had. A list that was never fetched is fetched once."""
    for prepare in ([], ["apt-get", "--quiet", "update"]):
        if prepare and subprocess.run(prepare, capture_output=True, check=False).returncode:
            return None
        done = subprocess.run(["apt-get", "--quiet", "download", package], cwd=folder, capture_output=True, check=False)
        if done.returncode == 0:
            return next(folder.glob(f"{package}_*.deb"))
    return None


if __name__ == "__main__":
    sys.exit(main())
