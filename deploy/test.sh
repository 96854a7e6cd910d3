#!/usr/bin/env bash
# Builds everything and runs all tests and lints. Usage: deploy/test.sh [--full]
# --full adds clang-tidy, the sanitizers and the exhaustive matrices.
# Exit code 0 only when every part passed; logs are build*/log-*.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
source deploy/part.sh

full=false
case ${1:-} in
  "") ;;
  --full) full=true ;;
  *) echo "usage: deploy/test.sh [--full]" >&2 && exit 2 ;;
esac
jobs=$(nproc)

# The functions that `part` runs chain with &&: bash ignores errexit inside them.
build() { # build PRESET FOLDER TARGET
  cmake --preset "$1" &&
    cmake --build "$2" --target "$3" --parallel "$jobs"
}

run_tests() { # run_tests FOLDER CTEST-ARGUMENTS...
  ctest --test-dir "$1" --output-on-failure --parallel "$jobs" "${@:2}"
}

# Not over tests/, which would take as long again. It exits with 0 when it cannot read .clang-tidy,
# hence the grep. One of g++'s flags is none of clang's.
lint_with_clang_tidy() {
  local findings
  mkdir -p build/clang-tidy
  sed 's/ -fno-thread-jumps//' build/compile_commands.json >build/clang-tidy/compile_commands.json
  findings=$(run-clang-tidy-14 -quiet -p build/clang-tidy -j "$jobs" \
    "^$PWD/(core|proto|parallel|models|launch)/" 2>&1) || true
  echo "$findings" | sed 's/\x1b\[[0-9;]*m//g'
  [[ $findings == *clang-tidy-14* && $findings != *error:* ]]
}

# Ranks are threads in these tests: a sanitizer sees all of them at once.
run_sanitizer() { # run_sanitizer NAME TARGET CTEST-ARGUMENTS...
  part "$1 build" "build-$1/log-build.txt" build "$1" "build-$1" "$2" || return 0
  part "$1 tests" "build-$1/log-tests.txt" run_tests "build-$1" "${@:3}" || true
}

run_full_parts() {
  part "clang-tidy" build/log-clang-tidy.txt lint_with_clang_tidy || true
  run_sanitizer asan all --label-exclude mpirun
  run_sanitizer tsan rank_tests --label-regex ranks
  TWINSTREAM_EXHAUSTIVE=1 part "exhaustive matrices" build/log-exhaustive.txt \
    run_tests build --label-regex exhaustive || true
}

packages=(build test)
if $full; then packages+=(full); fi
if part "packages" build/log-install.txt bash deploy/install.sh "${packages[@]}" &&
  part "build" build/log-build.txt build release build all; then
  part "lint" build/log-lint.txt run_tests build --label-regex lint || true
  part "tests" build/log-tests.txt run_tests build --label-exclude lint || true
  grep -h "tests passed" build/log-lint.txt build/log-tests.txt || true
  grep -h "^SKIPPED" build/Testing/Temporary/LastTest.log || true
  if $full; then run_full_parts; fi
fi
part_summary
