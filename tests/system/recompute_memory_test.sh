#!/bin/bash
# What recomputation saves of a process's memory is what the plan printed at the start says, within 5 %.
# Usage: recompute_memory_test.sh FOLDER_OF_THE_TEST_PROGRAMS
# shellcheck source=tests/system/command_testing.sh
source "$(dirname "$0")/command_testing.sh"

# Activations of a few hundred MiB beside weights of a few.
model='model { layers: 16 hidden: 64 heads: 4 ffn: 176 sequence: 128 }'

measure() { # measure RECOMPUTE: sets planned and used, bytes
  run 0 alone train job.textproto --override="$model" --override="name: \"$1\"" \
    --override='train { steps: 2 global_batch: 32 microbatch: 32 eval_every: 0 }' \
    --override='data { validation { path: "tokens.bin" } }' \
    --override="parallel { recompute: $1 }"
  used=$(value "runs/$1/metrics.jsonl" 2 memory_bytes)
  planned=$(sed -n 's/.*activations \([0-9.]*\) MiB, scratch \([0-9.]*\) MiB.*/\1 \2/p' "$output" |
    awk '{ printf "%d", ($1 + $2) * 1048576 }')
  [ -n "$planned" ] || fail "no memory plan in MiB"
}

measure NONE
none_used=$used none_planned=$planned
for mode in SELECTIVE FULL; do
  measure $mode
  awk -v mode=$mode -v used=$((none_used - used)) -v planned=$((none_planned - planned)) 'BEGIN {
    printf "%s saves %.1f MiB, planned %.1f MiB: %.3f\n", mode, used / 1048576, planned / 1048576, used / planned
    exit !(planned > 64 * 1048576 && used > 0.95 * planned && used < 1.05 * planned)
  }' || fail "$mode saves other than planned"
done
