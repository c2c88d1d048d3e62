#!/bin/sh
# Installs the locked packages of the core and of the extras named after $1 into folder $1, verified by hash.
set -eu
folder=$1
shift
python3 deploy/docker/locked.py "$@" > /tmp/wanted.txt
python3 -m pip install --target "$folder" --no-compile --no-deps --require-hashes -r /tmp/wanted.txt
rm -rf "${folder:?}/bin" "${folder:?}/share"
# A running service needs neither debug symbols nor the packages' own tests.
find "$folder" \( -name __pycache__ -o -name tests -path '*/pyarrow/*' -o -name tests -path '*/pandas/*' \) -prune -exec rm -rf {} +
# Bytecode is included, because it can't be written at run time. It is never checked, because the files never change.
python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash "$folder"
