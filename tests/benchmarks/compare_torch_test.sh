#!/bin/bash
# compare_torch.py says what is missing where there is no PyTorch. Where there is one, its twin computes
# the golden losses and gradients, and a comparison of the smallest shape ends in a table.
# Usage: compare_torch_test.sh FOLDER_OF_THE_TEST_PROGRAMS
set -u
here=$(dirname "$0")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
output=$folder/output

fail() { # fail MESSAGE
  echo "FAILED: $*. The output:"
  sed 's/^/    /' "$output"
  exit 1
}

compare() { # compare EXIT_CODE ARGUMENTS...
  local code=$1
  shift
  timeout 240 python3 "$here/compare_torch.py" "$@" >"$output" 2>&1
  local got=$?
  [ "$got" = "$code" ] || fail "$*: exit code $got instead of $code"
}

says() { # says PATTERN
  grep -Eq -- "$1" "$output" || fail "no line like: $1"
}

# One line, whether there is a PyTorch or not.
refuses() { # refuses PATTERN ARGUMENTS...
  local pattern=$1
  shift
  compare 2 "$@"
  says "$pattern"
  [ "$(wc -l <"$output")" = 1 ] || fail "$*: more than a line"
}
refuses "^$folder is no program: build it" --program="$folder"
refuses "^--json=$folder: Is a directory; name a file" --program=/bin/true --json="$folder"
refuses "^$folder/none is no file" --check "$folder/none"
refuses "^$folder is no file" --check "$folder"
refuses "^/dev/zero is no file" --check /dev/zero
refuses "^$0 holds no model's loss" --check "$0"
printf '\5\0\0\0\0\0\0\0{"a":' >"$folder/torn.safetensors"
refuses "^$folder/torn.safetensors cannot be read as safetensors" --check "$folder/torn.safetensors"

# With a torch that says its version and can do no more: of our program's answers.
mkdir "$folder/pretence"
echo '__version__ = "0"
class nn: functional = type("functional", (), {"rms_norm": None})' >"$folder/pretence/torch.py"
answers() { # answers PATTERN PROGRAM: with a program, a script, of these lines
  printf '%s\n' "$2" >"$folder/program"
  chmod +x "$folder/program"
  PYTHONPATH=$folder/pretence compare 2 --program="$folder/program"
  says "^S FP32 PRE_NORM: $1"
  ! grep -q Traceback "$output" || fail "a traceback"
}
answers "ours answered 'hello', not a line of JSON" $'#!/bin/sh\necho hello'
answers "ours answered '\\[1\\]', not a line of JSON" $'#!/bin/sh\necho "[1]"'
answers "ours ended with exit code 5" $'#!/bin/sh\nexit 5'
answers "$folder/program cannot be run: Exec format error" "no program"

mkdir "$folder/hidden"
echo 'raise ImportError("hidden by the test")' >"$folder/hidden/torch.py"
PYTHONPATH=$folder/hidden compare 1 --program=/bin/true --json="$folder/report.json"
says "^compare_torch.py needs PyTorch .* cannot import it \(ImportError: hidden by the test\)"

if ! python3 -c 'import torch' 2>/dev/null; then
  echo "SKIPPED: compare_torch_test needs a python3 that imports torch for a comparison"
  exit 77
fi
golden=("$here"/../golden/lm_{pre_norm,siamese_hybrid_pre,siamese_post_pre}*.safetensors)
compare 0 --check "${golden[@]}"
[ "$(grep -c "worst gradient" "$output")" = "${#golden[@]}" ] || fail "not every golden file was checked"

compare 0 --program="$1/train_benchmark" --shapes=tiny --precisions=FP32 --rounds=2 --steps=1 \
  --threads=1 --no-compile --json="$folder/report.json"
for scheme in PRE_NORM SIAMESE_HYBRID_PRE SIAMESE_POST_PRE; do
  says "^\| tiny \| FP32 \| $scheme \| [0-9]+ \| - \| [0-9]+ \| [0-9.]+ \("
done
python3 - "$folder/report.json" <<'PYTHON' || fail "the report does not hold what the table says"
import json, sys

rows = json.load(open(sys.argv[1]))["rows"]
assert len(rows) == 3
for row in rows:
    # Both have the same fresh weights up to the seed: the loss of random tokens is near log(256).
    losses = [answer["loss"] for r in row["torch"]["eager"]["rounds"] for answer in r.values()]
    assert len(losses) == 4 and all(abs(loss - 5.545) < 0.5 for loss in losses), losses
PYTHON
