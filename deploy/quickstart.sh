#!/usr/bin/env bash
# From a fresh Debian 12 machine to a trained model and a sample of its text: installs packages,
# builds, prepares the data, trains on two ranks, samples. Run it again to resume or to sample again.
set -euo pipefail
cd "$(dirname "$0")/.."
source deploy/part.sh

job=deploy/jobs/quickstart.textproto
checkpoints=runs/quickstart/checkpoints
metrics=runs/quickstart/metrics.jsonl
goal=1.65 # nats per byte
program=build/twinstream

# The functions that `part` runs chain with &&: bash ignores errexit inside them.
build() {
  cmake --preset release &&
    cmake --build build --target twinstream
}

# The King James Bible as Debian ships it, one verse a line without its reference: 4.1 MB of English.
write_text() {
  bible -f gen1:1-rev22:21 | sed -E 's/^[0-9A-Za-z]+:[0-9]+ //' >data/kjv.txt.new || return 1
  if [[ $(stat -c %s data/kjv.txt.new) -lt 4000000 ]]; then
    echo "bible printed only $(stat -c %s data/kjv.txt.new) bytes; reinstall the package bible-kjv-text"
    return 1
  fi
  mv data/kjv.txt.new data/kjv.txt
}

# Every byte is one two-byte token in one of the two files; anything else is left from an interruption.
data_is_whole() {
  [[ -f data/kjv.txt && -f data/kjv.bin && -f data/kjv.validation.bin && -f data/kjv.json ]] &&
    [[ $(cat data/kjv.bin data/kjv.validation.bin | wc -c) -eq $((2 * $(stat -c %s data/kjv.txt))) ]]
}

prepare_data() {
  mkdir -p data || return 1
  if [[ ! -f data/kjv.txt ]]; then write_text || return 1; fi
  data_is_whole || "$program" prepare-data --input=data/kjv.txt --output=data/kjv \
    --tokenizer=bytes --validation=0.05
}

steps_in_job() { sed -nE 's/^[^#]*\bsteps:[[:space:]]*([0-9]+).*/\1/p' "$job" | tail -n 1; }

is_finished() {
  [[ -f $checkpoints/latest ]] &&
    [[ $(tr -d '[:space:]' <"$checkpoints/latest") == "$(printf 'step_%09d' "$(steps_in_job)")" ]]
}

train() {
  OMP_NUM_THREADS=1 mpirun -np 2 --oversubscribe --allow-run-as-root --bind-to none \
    "$program" train "$job" --resume=auto
}

final_validation_loss() {
  sed -nE 's/.*"validation_loss": *([0-9.eE+-]+).*/\1/p' "$metrics" | tail -n 1
}

part "1/5 packages" build/log-install.txt bash deploy/install.sh build
part "2/5 build (minutes, the first time)" build/log-quickstart-build.txt build
part "3/5 data (King James Bible, bytes)" build/log-data.txt prepare_data
if is_finished; then
  echo "4/5 train: already finished ($(steps_in_job) steps, $checkpoints); to train afresh: rm -r runs/quickstart"
else
  echo "4/5 train: $(steps_in_job) steps on two ranks, about three minutes on two cores"
  train || {
    status=$?
    echo "4/5 train: FAILED or stopped (exit $status); run this script again to go on from the last checkpoint"
    exit "$status"
  }
fi

loss=$(final_validation_loss)
echo "validation loss $loss nats per byte (below $goal expected)"
echo "5/5 sample:"
"$program" generate --checkpoint="$checkpoints" --prompt="And the LORD said unto " --tokens=300 \
  --temperature=0.8 --seed="$SECONDS$RANDOM"
echo
awk -v loss="$loss" -v goal="$goal" 'BEGIN { exit !(loss != "" && loss + 0 < goal) }' || {
  echo "the validation loss is not below $goal: something is wrong with this build or job" >&2
  exit 1
}
