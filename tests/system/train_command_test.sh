#!/bin/bash
# `twinstream train` under mpirun: its files, its exit codes, stopping and going on.
# Usage: train_command_test.sh FOLDER_OF_THE_TEST_PROGRAMS
# shellcheck source=tests/system/command_testing.sh
source "$(dirname "$0")/command_testing.sh"

files_of_a_run() {
  run 0 2 train job.textproto
  python3 - runs/tiny/metrics.jsonl <<'PYTHON' >"$output" 2>&1 || fail "metrics.jsonl"
import json
import sys

training = ["step", "loss", "cross_entropy", "grad_norm", "learning_rate", "tokens",
            "tokens_per_second", "step_seconds", "model_flops_utilization", "memory_bytes"]
validation = ["step", "validation_loss", "validation_perplexity"]
lines = [json.loads(line) for line in open(sys.argv[1])]
assert [list(line) for line in lines] == (
    ([training] * 3 + [validation]) * 2), [list(line) for line in lines]
steps = [line for line in lines if "loss" in line]
assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
assert [line["tokens"] for line in steps] == [32 * step for step in range(1, 7)]
assert all(line["learning_rate"] == 0.01 and line["step_seconds"] > 0 for line in steps)
PYTHON
  same "checkpoints" "$(saved tiny)" "3 6"
  same "latest" "$(cat runs/tiny/checkpoints/latest)" step_000000006
  grep -q "data: 2" runs/tiny/job.textproto || fail "job.textproto does not say what was run"
  run 0 alone validate runs/tiny/job.textproto --ranks=2
  run 2 2 train job.textproto
  says "already holds checkpoints.*--resume=auto"
}

traced_steps_are_a_chrome_trace() {
  run 0 2 train job.textproto --override='name: "traced" parallel { pipeline: 2 schedule: ZERO_BUBBLE }
    metrics { trace_steps: "2,4-5" }'
  says "^Pipeline bubble [0-9.]+ % \(planned 7.7 %\), communication [0-9.]+ % of step time\.$"
  python3 - runs/traced/trace.json <<'PYTHON' >"$output" 2>&1 || fail "trace.json"
import json
import sys

events = json.load(open(sys.argv[1]))["traceEvents"]
assert {event["tid"] for event in events if event["ph"] == "X"} == {0, 1}
forward = [event["name"] for event in events if event.get("cat") == "forward" and event["tid"] == 1]
assert forward == [f"F s1 m{k}" for k in range(4)] * 3, forward
PYTHON
  run 2 2 train job.textproto --override='name: "bad" metrics { trace_steps: "5-x" }'
  says 'metrics.trace_steps = "5-x": "5-x" at character 1 is no step'
}

a_profile_accounts_for_the_steps() {
  run 0 2 train job.textproto --override='name: "profiled" metrics { profile: true }'
  says "^Profile of rank 0: 5 steps after the first, [0-9.]+ s each\. Ceilings: products [0-9.]+ GFLOP/s"
  says "^product tn \+= 48x16x8 F32 .* % +[0-9.]+ GFLOP/s .* %$"
  says "^outside: waiting, messages, host .* %$"
  same "losses" "$(digits profiled)" "$(digits tiny)"
  python3 - runs/profiled <<'PYTHON' >"$output" 2>&1 || fail "profile.json"
import json
import sys

profile = json.load(open(sys.argv[1] + "/profile.json"))
lines = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl")]
steps = sum(line["step_seconds"] for line in lines if "loss" in line and line["step"] > 1)
operations = profile["operations"]
seconds = sum(row["seconds"] for row in operations)
assert abs(seconds - profile["operation_seconds"]) < 1e-6 * seconds
assert 0 < seconds <= profile["step_seconds"] <= steps, (seconds, profile["step_seconds"], steps)
assert profile["bytes_per_second"] > 1e8 and profile["f32_flops_per_second"] > 1e8
calls = {row["op"]: row["calls"] for row in operations}
# Evaluations, which know no backward, are not in it.
assert calls["attention forward"] == calls["attention backward"] == 5 * 2 * 2, calls
assert all(0 < row["floor_seconds"] and row["bytes"] > 0 for row in operations)
arithmetic = {row["op"].split(" ")[0] for row in operations if row["flops"] > 0}
assert arithmetic == {"product", "attention"}, arithmetic
PYTHON
}

six_steps_are_three_and_three() {
  run 0 2 train job.textproto --override='name: "half" train { steps: 3 }'
  same "checkpoints" "$(saved half)" 3
  cp -r runs/half runs/other
  run 0 2 train job.textproto --override='name: "half"' --resume=auto
  says "changed since the checkpoint: train.steps: 3 -> 6"
  same "metrics" "$(digits half)" "$(digits tiny)"
}

another_layout_goes_on() {
  local job='name: "other" train { steps: 7 } parallel { tensor: 2 pipeline: 2 }'
  run 0 4 train job.textproto --override="$job" --resume=auto
  says "changed since the checkpoint: parallel.tensor: 1 -> 2"
  says "changed since the checkpoint: parallel.pipeline: 1 -> 2"
  says "going on from .*step_000000003, written by tensor 1 x pipeline 1 x data 2"
  for step in 4 5 6; do
    close "loss of step $step" "$(value runs/other/metrics.jsonl "$step" loss)" \
      "$(value runs/tiny/metrics.jsonl "$step" loss)"
  done
  same "latest" "$(cat runs/other/checkpoints/latest)" step_000000007
}

another_job_is_refused() {
  run 2 2 train job.textproto --resume=auto --override='model { ffn: 32 } train { steps: 9 }'
  says "model.ffn: 24 -> 32"
  run 2 alone train job.textproto --resume=auto --override='data { order: SEQUENTIAL }'
  says "data.order: SHUFFLED -> SEQUENTIAL"
  same "checkpoints" "$(saved tiny)" "3 6"
}

a_place_that_cannot_be_used_is_named_and_nothing_made() {
  mkdir -p runs/blocked/metrics.jsonl
  run 2 alone train job.textproto --override='name: "blocked"'
  says 'metrics.directory "runs/blocked": .*; name a directory that can be written'
  local long
  long=$(printf 'a%.0s' $(seq 255))
  run 2 alone train job.textproto --override="name: 'blocked' metrics { directory: '${long}b' }"
  says 'metrics.directory has a part of 256 characters'
  local deep=$long
  for _ in $(seq 16); do deep=$deep/$long; done
  run 2 alone train job.textproto --override="name: 'blocked' metrics { directory: '$deep' }"
  says 'metrics.directory .*File name too long.*; name a directory that can be written'
  [ ! -e runs/blocked/checkpoints ] || fail "an empty checkpoint directory is left"
}

both_directories_may_be_one() {
  run 0 2 train job.textproto --override='name: "one" checkpoint { directory: "runs/one" }'
  same "latest" "$(cat runs/one/latest)" step_000000006
}

old_checkpoints_go() {
  run 0 alone train job.textproto --override='name: "keep" train { steps: 10 }
    checkpoint { every_steps: 1 keep: 2 keep_every: 4 }'
  same "checkpoints" "$(saved keep)" "4 8 9 10"
}

a_removed_metrics_file_ends_the_run() {
  start removed 2 train job.textproto --override='name: "removed" train { steps: 1000000 eval_every: 0 }
    checkpoint { every_steps: 0 }'
  rm -r runs/removed
  ends_with 1
  says "runs/removed/metrics.jsonl was removed while it was being written"
}

a_directory_named_latest_is_found_before_the_first_step() {
  mkdir -p runs/taken/checkpoints/latest.tmp
  run 2 2 train job.textproto --override='name: "taken"'
  says "checkpoint.directory .runs/taken/checkpoints.: .*/latest.tmp: a directory .*in the way"
  mkdir -p runs/profiles/profile.json
  run 2 2 train job.textproto --override='name: "profiles" metrics { profile: true }'
  says "metrics.directory .runs/profiles.: .*/profile.json: a directory .*in the way"
  [ ! -e runs/taken/metrics.jsonl ] && [ ! -e runs/profiles/metrics.jsonl ] || fail "a run has begun"
}

damage() { # damage CHECKPOINT
  python3 - "$1/shard_00001.safetensors" <<'PYTHON'
import sys

with open(sys.argv[1], "r+b") as file:
    file.seek(-5, 2)
    byte = file.read(1)[0]
    file.seek(-5, 2)
    file.write(bytes([byte ^ 16]))
PYTHON
}

a_damaged_checkpoint_is_passed_over() {
  damage runs/half/checkpoints/step_000000006
  run 0 2 train job.textproto --override='name: "half" train { steps: 7 }' --resume=auto
  says "warning: .*step_000000006"
  says "going on from .*step_000000003"
  same "lines of a change" "$(grep -c "changed since the checkpoint: train.steps" "$output")" 1
  same "metrics" "$(digits half | head -n 6)" "$(digits tiny)"
}

a_run_whose_last_checkpoint_is_damaged_is_not_complete() {
  local last=runs/half/checkpoints/step_000000007
  run 0 2 train job.textproto --override='name: "half" train { steps: 7 }' --resume=auto
  says "half is complete"
  damage "$last"
  run 0 2 train job.textproto --override='name: "half" train { steps: 7 }' --resume=auto
  says "warning: .*step_000000007"
  says "going on from .*step_000000006"
  run 0 alone inspect "$last"
}

a_run_without_a_whole_checkpoint_says_that_it_starts_afresh() {
  run 0 2 train job.textproto --override='name: "lost" train { steps: 3 }'
  damage runs/lost/checkpoints/step_000000003
  run 0 2 train job.textproto --override='name: "lost" train { steps: 3 }' --resume=auto
  says "warning: no checkpoint in runs/lost/checkpoints is whole: the run starts afresh"
}

closed_standard_streams_get_nothing() {
  "$program" train job.textproto --override='name: "closed" parallel { data: 1 }' <&- >&- 2>&-
  same "exit code" $? 0
  same "metrics" "$(grep -c '^{"step": [0-9]*, .*}$' runs/closed/metrics.jsonl)" \
    "$(wc -l <runs/closed/metrics.jsonl)"
  "$program" evaluate job.textproto --override='parallel { data: 1 }' \
    --checkpoint=runs/tiny/checkpoints <&- >&- 2>&-
  same "exit code" $? 1
}

# The last step that metrics.jsonl has is saved, and a run goes on from it.
expect_saved_and_go_on() { # expect_saved_and_go_on NAME
  local last
  last=$(tail -n 1 "runs/$1/metrics.jsonl" | sed 's/^{"step": \([0-9]*\),.*/\1/')
  same "checkpoints" "$(saved "$1")" "$last"
  local job="name: '$1' train { steps: $((last + 2)) eval_every: 0 }"
  run 0 2 train job.textproto --override="$job" --resume=auto
  same "latest" "$(cat "runs/$1/checkpoints/latest")" "$(printf 'step_%09d' $((last + 2)))"
}

signals_save_and_stop() {
  local long='train { steps: 1000000 eval_every: 0 } checkpoint { every_steps: 0 }'
  start mpirun 2 train job.textproto --override="name: 'mpirun' $long"
  kill -USR1 "$mpirun_pid"
  ends_with 3
  says "stopped by a signal after step [0-9]+, which is saved"
  expect_saved_and_go_on mpirun

  start rank 2 train job.textproto --override="name: 'rank' $long"
  local first_output=$output
  output=$folder/second
  run 1 alone train job.textproto --override="name: 'rank' $long" --resume=auto
  says 'checkpoint.directory "runs/rank/checkpoints": another process holds .*/.lock: a run uses this directory'
  run 1 alone train job.textproto --override="name: 'guest' metrics { directory: 'runs/rank' }"
  says 'metrics.directory "runs/rank": another process holds runs/rank/.lock: a run uses this directory'
  output=$first_output
  kill -TERM "$rank_pid"
  ends_with 3
  expect_saved_and_go_on rank

  start killed 2 train job.textproto --override="name: 'killed' $long"
  kill -KILL "$rank_pid"
  ends_with 137
  says "^rank [01] \(tensor 0, pipeline 0, data [01]\).*waiting in .* for rank [01]"
}

# No file may grow beyond 400 KB from the fifth step on: its metrics do, its checkpoint does not.
a_step_that_cannot_be_logged_is_saved() {
  start full 2 train job.textproto --override='name: "full" train { steps: 1000000 eval_every: 0 device: CPU }
    checkpoint { every_steps: 0 } metrics { tensorboard: false }'
  local rank
  for rank in $(cat /proc/$mpirun_pid/task/*/children); do prlimit --pid "$rank" --fsize=400000; done
  ends_with 1
  says 'metrics.directory "runs/full": cannot write runs/full/metrics.jsonl: File too large; make room in it'
  local last
  last=$(saved full)
  [ "$last" -gt 5 ] || fail "the step is not saved"
  run 0 2 train job.textproto --resume=auto \
    --override="name: 'full' train { steps: $((last + 1)) eval_every: 0 }"
  says "going on from .*$last"
}

a_stopped_run_reports_its_profile() {
  local job='train { steps: 1000000 eval_every: 0 } checkpoint { every_steps: 0 }
    metrics { profile: true }'
  start stopped 2 train job.textproto --override="name: 'stopped' $job"
  kill -TERM "$rank_pid"
  ends_with 3
  says "^outside: waiting, messages, host .* %$"
  [ -e runs/stopped/profile.json ] || fail "no profile.json"

  start unwritten 2 train job.textproto --override="name: 'unwritten' $job"
  mkdir -p runs/unwritten/profile.json/taken
  kill -USR1 "$mpirun_pid"
  ends_with 3
  says "stopped by a signal after step [0-9]+, which is saved"
  says 'metrics.directory "runs/unwritten": cannot rename .*profile.json.*; make room in it or name another'
  [ ! -e runs/unwritten/profile.json.tmp ] || fail "profile.json.tmp is left"
}

a_run_without_numbers_stops() {
  run 1 2 train job.textproto --override='name: "nan" optimizer { peak_lr: 1e30 }'
  says "step 2: loss .*, gradient norm (nan|inf): training stopped"
  says "optimizer.peak_lr"
  grep -Eq '"(nan|inf|-inf)"' runs/nan/metrics.jsonl || fail "metrics.jsonl does not say it"
}

files_of_a_run
traced_steps_are_a_chrome_trace
a_profile_accounts_for_the_steps
six_steps_are_three_and_three
another_layout_goes_on
another_job_is_refused
a_place_that_cannot_be_used_is_named_and_nothing_made
a_directory_named_latest_is_found_before_the_first_step
a_removed_metrics_file_ends_the_run
both_directories_may_be_one
old_checkpoints_go
a_damaged_checkpoint_is_passed_over
a_run_whose_last_checkpoint_is_damaged_is_not_complete
a_run_without_a_whole_checkpoint_says_that_it_starts_afresh
closed_standard_streams_get_nothing
signals_save_and_stop
a_step_that_cannot_be_logged_is_saved
a_stopped_run_reports_its_profile
a_run_without_numbers_stops
