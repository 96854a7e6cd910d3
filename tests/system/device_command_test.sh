#!/bin/bash
# What a job that asks for a card is told where it cannot have one. Usage: device_command_test.sh
# FOLDER_OF_THE_TEST_PROGRAMS
# shellcheck source=tests/system/command_testing.sh
source "$(dirname "$0")/command_testing.sh"

module=$(dirname "$program")/twinstream_cuda.so
cuda='train { device: CUDA }'
export CUDA_VISIBLE_DEVICES=  # whatever this host has

refused() { # refused PATTERN ARGUMENTS...: with one sentence, once, and code 2
  local pattern=$1
  shift
  run 2 2 "$@"
  says "^twinstream: train.device = CUDA needs $pattern, or take the CPU with --override='train \{ device: CPU \}'$"
  same "sentences" "$(grep -c 'train.device = CUDA' "$output")" 1
}

# A copy of the program with another module beside it, or none.
mkdir copy
cp "$program" copy/
here=$program
program=$PWD/copy/twinstream

a_job_may_ask_for_any_device() {
  run 0 alone validate job.textproto --override="$cuda"
  run 0 alone validate job.textproto --override='train { device: AUTO }'
}

a_missing_module_is_named() {
  local missing="the module twinstream_cuda.so, which is not in [^:]*/copy, .*: build it with .*"
  refused "$missing" train job.textproto --override="$cuda"
  refused "$missing" verify job.textproto --override="$cuda"
}

a_strange_module_is_named() {
  echo "no module" >copy/twinstream_cuda.so
  refused 'a module that fits this program, and the loader says of it ".*": build both together' \
    train job.textproto --override="$cuda"
}

auto_is_the_cpu_without_a_card() {
  run 0 2 train job.textproto --override='train { device: AUTO }' \
    --override='metrics { directory: "runs/auto" } checkpoint { directory: "runs/auto/checkpoints" }'
  run 0 2 train job.textproto
  same "metrics with AUTO" "$(digits auto)" "$(digits tiny)"
  refused ".*" evaluate job.textproto --checkpoint=runs/tiny/checkpoints --override="$cuda"
}

a_module_that_is_cut_off_is_named() {
  head -c 100000 "$module" >copy/twinstream_cuda.so
  refused "a whole module, and .*/twinstream_cuda.so is cut off: copy it again" \
    train job.textproto --override="$cuda"
}

a_missing_library_is_named() {
  sed 's/libcublasLt\.so\.13/libcublasLt.so.99/' "$module" >copy/twinstream_cuda.so
  refused "libcublasLt.so.99, which the loader does not find: install CUDA.s libraries .*" \
    train job.textproto --override="$cuda"
}

a_missing_driver_or_card_is_named() {
  program=$here
  refused "(NVIDIA's driver, which|an NVIDIA card, and) this host .*" \
    train job.textproto --override="$cuda"
}

a_job_may_ask_for_any_device
a_missing_module_is_named
a_strange_module_is_named
rm copy/twinstream_cuda.so
if [ -e "$module" ]; then
  a_module_that_is_cut_off_is_named
  a_missing_library_is_named
  a_missing_driver_or_card_is_named
fi
auto_is_the_cpu_without_a_card
if [ ! -e "$module" ]; then
  echo "SKIPPED: the CUDA module is not built: no test loads it"
  exit 77
fi
echo "a missing module, library, driver or card is named"
