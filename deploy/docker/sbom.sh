#!/usr/bin/env bash
# Writes the bill of materials (CycloneDX, JSON) of an environment that install.sh has made: every package with version
# and licence. An image's own is made while it is built with `docker build --sbom=true`.
#
# usage: sbom.sh ENVIRONMENT FILE
set -euo pipefail
cyclonedx-py environment --output-reproducible --output-format JSON --output-file "$2" "$1/bin/python"
