#!/bin/sh
# Installs into folder $1 what the core and the extras after it need: the locked files, by their hashes, nothing else.
set -eu
folder=$1
shift
python3 deploy/docker/locked.py "$@" > /tmp/wanted.txt
python3 -m pip install --target "$folder" --no-compile --no-deps --require-hashes -r /tmp/wanted.txt
rm -rf "${folder:?}/bin" "${folder:?}/share"
# Debug symbols and a package's own tests are no part of a running service.
find "$folder" \( -name __pycache__ -o -name tests -path '*/pyarrow/*' -o -name tests -path '*/pandas/*' \) -prune -exec rm -rf {} +
# Nothing can write bytecode where these files go, so it comes with them; the files never change, so nothing checks it.
python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash "$folder"
