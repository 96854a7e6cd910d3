#!/bin/bash
# evaluate, generate, verify, export and initial weights on one rank and on four.
# Usage: ask_command_test.sh FOLDER_OF_THE_TEST_PROGRAMS
# shellcheck source=tests/system/command_testing.sh
source "$(dirname "$0")/command_testing.sh"

checkpoints=runs/tiny/checkpoints
four='parallel { tensor: 2 pipeline: 2 }'
context='parallel { context: 4 }'

evaluation() { sed -n 's/^validation_loss=\([^ ]*\) .*/\1/p' "$output"; }

evaluation_is_the_last_validation() {
  run 0 2 train job.textproto
  local trained
  trained=$(value runs/tiny/metrics.jsonl 6 validation_loss)
  run 0 alone evaluate job.textproto --checkpoint=$checkpoints
  says "^validation_loss=[0-9.]+ validation_perplexity=[0-9.]+ tokens=104$"
  alone=$(evaluation)
  close "validation loss on one rank" "$alone" "$trained"
  run 0 4 evaluate job.textproto --checkpoint=$checkpoints --override="$four"
  says "tokens=104$"
  close "validation loss on four ranks" "$(evaluation)" "$trained"
  run 0 4 evaluate job.textproto --checkpoint=$checkpoints --override="$context"
  close "validation loss on context ranks" "$(evaluation)" "$trained"
  run 0 4 evaluate job.textproto --checkpoint=$checkpoints/step_000000006
  close "validation loss on four data ranks" "$(evaluation)" "$trained"
}

greedy_text_does_not_depend_on_the_layout() {
  run 0 alone generate --checkpoint=$checkpoints --prompt=abc --tokens=12 --temperature=0
  cp "$output" alone.txt
  same "bytes of prompt, continuation and newline" "$(wc -c <alone.txt)" 16
  grep -q "^abc" alone.txt || fail "the prompt does not come first"
  run 0 4 generate --checkpoint=$checkpoints --prompt=abc --tokens=12 --temperature=0 \
    --override="$four"
  cmp -s "$output" alone.txt || fail "four ranks say something else than one: $(cat alone.txt)"
  run 0 4 generate --checkpoint=$checkpoints --prompt=abc --tokens=12 --temperature=0 \
    --override="$context"
  cmp -s "$output" alone.txt || fail "context ranks say something else: $(cat alone.txt)"
}

layouts_are_verified() {
  run 0 4 verify job.textproto --override="$four"
  says "^loss .* ok"
  says "^worst parameter gradient .* ok"
  run 0 4 verify job.textproto --override="$context"
  says "^worst parameter gradient .* ok"
}

chunks_answer_like_one_rank() {
  local chunks='model { layers: 4 } parallel { pipeline: 2 virtual_stages: 2 schedule: INTERLEAVED }'
  run 0 2 train job.textproto --override="name: 'chunks' $chunks"
  local trained
  trained=$(value runs/chunks/metrics.jsonl 6 validation_loss)
  run 0 alone evaluate job.textproto --checkpoint=runs/chunks/checkpoints \
    --override='model { layers: 4 }'
  close "validation loss on one rank" "$(evaluation)" "$trained"
  run 0 2 evaluate job.textproto --checkpoint=runs/chunks/checkpoints --override="$chunks"
  close "validation loss in chunks" "$(evaluation)" "$trained"
  run 0 alone generate --checkpoint=runs/chunks/checkpoints --prompt=abc --tokens=12
  cp "$output" alone.txt
  run 0 2 generate --checkpoint=runs/chunks/checkpoints --prompt=abc --tokens=12
  cmp -s "$output" alone.txt || fail "chunks say something else than one rank: $(cat alone.txt)"
  run 0 2 verify job.textproto --override="$chunks"
  says "^loss .* ok"
  says "^worst parameter gradient .* ok"
}

# One step over exactly the validation windows reports the loss that evaluate does.
an_export_starts_a_run() {
  run 0 alone export $checkpoints --output=exported
  local job='name: "again" data { train { path: "validation.bin" } order: SEQUENTIAL }
    train { steps: 1 global_batch: 13 initial_weights: "exported" }'
  run 0 alone train job.textproto --override="$job"
  close "first loss" "$(value runs/again/metrics.jsonl 1 loss)" "$alone"
  run 0 4 train job.textproto --override="$job" --override="name: 'layout' $four"
  close "first loss on four ranks" "$(value runs/layout/metrics.jsonl 1 loss)" "$alone"
}

a_file_that_may_not_grow_is_named() {
  (ulimit -f 1 && exec "$program" export $checkpoints --output=limited) >"$output" 2>&1
  same "exit code" $? 1
  says "^twinstream: cannot write limited/model.safetensors.*: File too large"
  same "files" "$(find limited -type f | wc -l)" 0
}

evaluation_is_the_last_validation
greedy_text_does_not_depend_on_the_layout
layouts_are_verified
chunks_answer_like_one_rank
an_export_starts_a_run
a_file_that_may_not_grow_is_named
