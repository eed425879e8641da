#!/bin/sh
# Installs the package, pinned by the lock of the tests, into a new virtual environment: sh docker/install.sh FOLDER
# TORCH_INDEX: where the wheels of torch come from, if not from pip's own index (a CPU build, or one for a certain CUDA).
set -eu
target=$1
python3 -m venv "$target"
if [ -n "${TORCH_INDEX:-}" ]; then
  # Such an index need not have what torch itself asks for: the next line fetches that from pip's own.
  "$target/bin/pip" install --no-cache-dir --no-deps --index-url "$TORCH_INDEX" --constraint requirements/test.lock torch
fi
"$target/bin/pip" install --no-cache-dir --constraint requirements/test.lock ".[kubernetes]"
"$target/bin/elastic" --version
