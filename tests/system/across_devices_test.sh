#!/bin/bash
# A run that goes on from the CPU to a card and back, on other layouts, and AUTO where there is a card.
# Usage: across_devices_test.sh FOLDER_OF_THE_TEST_PROGRAMS, with TESTED_PROGRAM beside a module whose
# card any host can use.
# shellcheck source=tests/system/command_testing.sh
source "$(dirname "$0")/command_testing.sh"

# go_on NAME STEPS RANKS DEVICE LAYOUT: to so many steps, on that device.
go_on() {
  run 0 "$3" train job.textproto --resume=auto \
    --override="name: '$1' train { steps: $2 device: $4 } parallel { $5 }"
  says "; device: ${4,,};"
}

a_run_may_change_its_device() {
  go_on whole 9 alone CPU ''
  go_on mixed 3 2 CPU 'data: 2'
  go_on mixed 6 4 CUDA 'tensor: 2 pipeline: 2 sequence_parallel: true'
  says "changed since the checkpoint: train.device: CPU -> CUDA"
  go_on mixed 9 2 CPU 'context: 2 shard_optimizer: true'
  for step in $(seq 9); do
    close "loss of step $step" "$(value runs/mixed/metrics.jsonl "$step" loss)" \
      "$(value runs/whole/metrics.jsonl "$step" loss)"
  done
}

# The driver is a file of its name: without it no job looks for a card.
auto_takes_a_card() {
  local driver=$PWD/driver auto='train { steps: 1 device: AUTO }'
  run 0 2 train job.textproto --override="name: 'without' $auto"
  says "; device: cpu;"
  mkdir "$driver"
  "${CC:-cc}" -shared -o "$driver/libcuda.so.1" -x c /dev/null || fail "no library"
  LD_LIBRARY_PATH=$driver run 0 2 train job.textproto --override="name: 'with' $auto"
  says "; device: cuda;"
}

a_run_may_change_its_device
auto_takes_a_card
