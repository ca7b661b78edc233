#!/usr/bin/env bash
# refuses_without_gpu.sh FOLDER: scripts/test-gpu ends at once, with a code other than 0, where nvidia-smi, which is in
# FOLDER, finds no GPU.
set -euo pipefail
said=$(PATH="$1:$PATH" "$(dirname "$0")/../../scripts/test-gpu" /dev/null 2>&1) && code=0 || code=$?
expected='error: [test-gpu] nothing was built or run: no GPU; got no driver, expected an NVIDIA GPU and its driver (scripts/test runs all tests that need none)'
if [ "$code" != 1 ] || [ "$said" != "$expected" ]; then
  printf 'code %s, said:\n%s\n' "$code" "$said"
  exit 1
fi
