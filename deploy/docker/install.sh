#!/usr/bin/env bash
# Makes the content of one image: a virtual environment with what its lock file names, and headrace itself.
# The Dockerfile and tests/deploy/test_images.py both run this. It needs python3 and uv on the path.
#
# usage: install.sh TARGET DESTINATION WHEEL
set -euo pipefail
target=$1 destination=$2 wheel=$3
here=$(cd "$(dirname "$0")" && pwd)

python3 -m venv --without-pip "$destination"
export VIRTUAL_ENV=$destination
uv pip install --quiet --require-hashes --no-deps --requirements "$here/locks/$target.txt"
uv pip install --quiet --no-index --no-deps "$wheel"
uv pip check --quiet # the lock file is whole, and fits this release
