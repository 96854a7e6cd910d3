#!/bin/bash
# ops_benchmark measures the machine only if a benchmark runs: without one it takes no memory for that.
# Usage: ops_benchmark_test.sh FOLDER_OF_THE_TEST_PROGRAMS
set -u
python3 - "$1/ops_benchmark" <<'PYTHON'
import resource
import subprocess
import sys

names = subprocess.run([sys.argv[1], "--benchmark_list_tests"], check=True, capture_output=True, text=True)
assert "Matmul/qkv/forward/M/F32" in names.stdout, names.stdout
none = subprocess.run([sys.argv[1], "--benchmark_filter=no_such_operation"], capture_output=True, text=True)
assert none.returncode == 1 and "match" in none.stdout + none.stderr, none
other = subprocess.run([sys.argv[1], "--device=gpu"], capture_output=True, text=True)
assert other.returncode == 2 and "--device=gpu: there is no device gpu" in other.stderr, other
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
assert peak < 200 * 1024, f"{peak} KiB"  # the array of the bandwidth alone has 256 MiB
PYTHON
