#!/usr/bin/env bash
# told_of_fault.sh RANKS COMMAND...: runs random messages in which one rank misbehaves, and passes when so many
# of its ranks print that they were told of it. The command's own code says only that a rank ended badly.
set -uo pipefail
wanted=$1
shift
out=$("$@")
echo "$out"
told=$(grep -c '^told of rank ' <<<"$out")
[ "$told" -eq "$wanted" ] || { echo "fault: $told ranks of $wanted were told" >&2; exit 1; }
