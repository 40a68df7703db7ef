#!/usr/bin/env bash
# Writes the lock file of each image, or of those named: all that its extras need, with hashes. Versions that are locked
# stay unless the extras ask for others; UPGRADE=1 takes the newest.
#
# usage: lock.sh [TARGET...]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."

compile() {
    uv pip compile --quiet --generate-hashes --no-header --no-annotate --python-version 3.11 \
        ${UPGRADE:+--upgrade} --output-file "$@" > /dev/null
}

# whether a target is among those named, or none is
wanted() { [ $# -eq 1 ] || [[ " ${*:2} " == *" $1 "* ]]; }

while read -r target extras; do
    if wanted "$target" "$@"; then
        read -ra arguments <<< "--extra ${extras//,/ --extra }"
        compile "$here/locks/$target.txt" pyproject.toml "${arguments[@]}"
    fi
done < <(grep -v '^#' "$here/targets.txt")
if wanted build "$@"; then
    printf 'setuptools>=77\nuv\nwheel\n' | compile "$here/locks/build.txt" -
fi
