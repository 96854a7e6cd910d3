#!/usr/bin/env bash
# The rules of docs/style.md that a script can check. Prints file:line, the rule and the remedy for
# every violation; exits with 1 when there is one.
# Usage: tests/lint/layout_test.sh [ROOT [GENERATED]]   GENERATED: folder of proto/*.pb.h
set -euo pipefail
cd "${1:-$(dirname "$0")/../..}"
generated=$(realpath -m "${2:-build/generated}")
jobs=$(nproc)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

find_files() { # find_files NAME-PATTERN...: files of ours, without "./", sorted
  local tests=() pattern
  for pattern in "$@"; do tests+=(-o -name "$pattern"); done
  find . \( -path './build*' -o -path ./.git -o -path ./data -o -path ./runs -o -path ./.cache \) -prune \
    -o -type f \( "${tests[@]:1}" \) -print | sed 's|^\./||' | sort
}
mapfile -t sources < <(find_files '*.h' '*.cc' '*.cu' '*.cuh')
mapfile -t headers < <(find_files '*.h' '*.cuh')
mapfile -t scripts < <(find_files '*.sh' '*.sbatch')
mapfile -t python < <(find_files '*.py')
mapfile -t texts < <(find_files '*.md' '*.proto' '*.textproto' 'CMakeLists.txt' 'CMakePresets.json')

report() { # report PLACE RULE MESSAGE
  echo "$1: [$2] $3"
}

# Prints "file line delimiter path" of every #include.
list_includes() {
  grep -nHE '^[[:space:]]*#[[:space:]]*include[[:space:]]*["<]' "${sources[@]}" |
    sed -nE 's/^([^:]+):([0-9]+):[^"<]*(["<])([^">]+).*/\1 \2 \3 \4/p'
}

# The folders that each folder may include. tests may include anything.
declare -A may_include=(
  [core]=" core "
  [proto]=" proto "
  [parallel]=" parallel core proto "
  [models]=" models parallel core proto "
  [launch]=" launch models parallel core proto "
)

check_folder_chain() { # check_folder_chain FILE LINE DELIMITER PATH
  local folder=${1%%/*} target=${4%%/*} place=$1:$2
  if [[ $3 == '<' ]]; then
    [[ -z ${may_include[$target]:-} || $4 != */*.h ]] ||
      report "$place" folder-chain "write \"$4\": quotes for our headers"
    return 0
  fi
  if [[ -z ${may_include[$target]:-} && $target != tests ]]; then
    [[ $4 == */* && $4 != .* && ! -f ${1%/*}/$4 ]] || # else a library's header, as "absl/types/span.h"
      report "$place" folder-chain "\"$4\": write the path from the root (core/..., proto/...)"
  elif [[ $folder != tests && ${may_include[$folder]:-} != *" $target "* ]]; then
    report "$place" folder-chain "$folder may include only:${may_include[$folder]:- nothing of ours }- not $4; move the code or hand it in"
  elif [[ $4 == core/cpu/* || $4 == core/cuda/* ]]; then
    [[ $folder == tests || $1 == "$(dirname "$4")"/* || $1 == core/backends.cc ]] ||
      report "$place" folder-chain "$4 is a backend's own: go through core/device.h, only core/backends.cc names backends"
  fi
}

# Vendor headers appear only where they are owned.
check_vendor_header() { # check_vendor_header FILE LINE DELIMITER PATH
  local owners
  case $4 in
    mpi.h) owners="parallel/mpi_transport.cc launch/runtime.cc" ;;
    dnnl* | oneapi/*) owners="core/cpu/matmul.cc" ;;
    omp.h) owners="core/cpu/ core/threads.cc" ;;
    cuda* | cublas* | cudnn* | nccl*) owners="core/cuda/" ;;
    *) return 0 ;;
  esac
  local owner
  for owner in $owners tests/; do
    if [[ $1 == "$owner" || ($owner == */ && $1 == "$owner"*) ]]; then return 0; fi
  done
  report "$1:$2" vendor-header "<$4> belongs to $owners; call that file's interface"
}

check_includes() {
  local file line delimiter path
  while read -r file line delimiter path; do
    check_folder_chain "$file" "$line" "$delimiter" "$path"
    check_vendor_header "$file" "$line" "$delimiter" "$path"
  done < <(list_includes)
}

check_file_length() {
  local file lines
  for file in "${sources[@]}" "${scripts[@]}" "${python[@]}"; do
    lines=$(wc -l <"$file")
    [[ $lines -le 400 ]] ||
      report "$file:401" file-length "$lines lines, at most 400: split it by what it owns"
  done
}

check_macros() {
  { grep -nHE '^[[:space:]]*#[[:space:]]*define\b' "${sources[@]}" || true; } |
    sed -nE 's/^([^:]+:[0-9]+):.*/\1: [macro] no macros of ours: write a function, a constant or a template/p'
  { grep -nHE '^[[:space:]]*#[[:space:]]*(if|ifdef|ifndef)\b' "${sources[@]}" || true; } |
    sed -nE 's/^([^:]+:[0-9]+):.*/\1: [conditional] no conditional code: choose the source file in CMake/p'
}

check_pragma_once() {
  local header first
  for header in "${headers[@]}"; do
    first=$(grep -nvE '^[[:space:]]*(//|$)' "$header" | head -n 1 || true)
    [[ ${first#*:} == "#pragma once" ]] ||
      report "$header:${first%%:*}" pragma-once "after its leading comment a header starts with #pragma once"
  done
}

check_ascii() {
  { LC_ALL=C grep -nHP '[^\x00-\x7F]' "${sources[@]}" "${scripts[@]}" "${python[@]}" "${texts[@]}" || true; } |
    sed -nE 's/^([^:]+:[0-9]+):.*/\1: [ascii] only ASCII: spell it out/p'
}

# Every header compiles alone. The build proves it for NAME.h where NAME.cc includes it first; the others
# are compiled here, core/cuda's as the CPU emulates it but for those that nvcc takes instead, core/cpu's
# of AVX2 but for its twin's. Their translation units keep one place, so that ccache knows them again.
check_own_header_first() {
  local header first
  for header in "${headers[@]}"; do
    [[ -f ${header%.h}.cc ]] || continue
    first=$(grep -nE -m 1 '^[[:space:]]*#[[:space:]]*include' "${header%.h}.cc" || true)
    [[ $first == *"\"$header\"" ]] ||
      report "${header%.h}.cc:${first%%:*}" own-header-first "include \"$header\" before anything else"
  done
}

# Compiles the units, the arguments after the first, with the headers of that instruction set.
compile_headers() {
  local instruction_set=$1 compiler=(g++)
  shift
  [[ $# -gt 0 ]] || return 0
  local chosen=("-Icore/cpu/$instruction_set" -Icore/cuda/emulated -D__global__= -D__device__= -D__host__= "-D__launch_bounds__(...)=")
  if command -v ccache >/dev/null; then compiler=(ccache g++); fi
  printf '%s\0' "$@" | CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 xargs -0 -P "$jobs" -I{} \
    "${compiler[@]}" -std=c++20 -Wall -Wextra -Wno-unknown-pragmas -I. -isystem "$generated" "${chosen[@]}" \
    -c -o {}.o {} || true
}

check_headers_compile() {
  local header units=() avx512=() work
  work=${generated%/*}/header_check
  for header in "${headers[@]}"; do
    [[ $header == *.h && ! -f ${header%.h}.cc ]] || continue
    [[ $header != core/cuda/native/* ]] || continue
    mkdir -p "$work/${header%/*}"
    rm -f "$work/$header.cc.o"
    echo "#include \"$header\"" >"$work/$header.cc"
    if [[ $header == core/cpu/avx512/* ]]; then
      avx512+=("$work/$header.cc")
    else
      units+=("$work/$header.cc")
    fi
  done
  {
    compile_headers avx2 "${units[@]}"
    compile_headers avx512 "${avx512[@]}"
  } 2>"$work/compiler.txt"
  for header in "${units[@]}" "${avx512[@]}"; do
    [[ -f $header.o ]] && continue
    header=${header#"$work/"}
    header=${header%.cc}
    report "$header:1" header-alone "does not compile alone: include what it uses"
    grep -m 3 -F "$header" "$work/compiler.txt" | sed 's/^/    /' || true
  done
}

check_format() {
  local tool version
  tool=$(command -v clang-format-14 || command -v clang-format || true)
  version=$(${tool:-true} --version)
  if [[ $version != *" 14."* ]]; then
    echo "skipped: [format] needs clang-format 14 (deploy/install.sh test)" >&2
    return 0
  fi
  # Each process says what it finds at once: their lines must not mix.
  # shellcheck disable=SC2016
  { printf '%s\0' "${sources[@]}" |
    xargs -0 -P "$jobs" -n 8 sh -c 'printf "%s\n" "$("$0" --dry-run -Werror "$@" 2>&1)"' "$tool" || true; } |
    sed -nE 's/^([^: ]+:[0-9]+):[0-9]+: error: code should be clang-formatted.*/\1: [format] run clang-format -i on it (version 14)/p' |
    sort -u -t: -k1,1
}

check_scripts() {
  local script
  for script in "${scripts[@]}"; do
    bash -n "$script" 2>&1 |
      sed -nE 's/^([^:]+): line ([0-9]+): (.*)/\1:\2: [script] \3/p' || true
  done
  if ! command -v shellcheck >/dev/null; then
    echo "skipped: [script] shellcheck is not installed (deploy/install.sh test)" >&2
    return 0
  fi
  { shellcheck --format=gcc --severity=warning "${scripts[@]}" || true; } |
    sed -nE 's/^([^:]+:[0-9]+):[0-9]+: (.*)/\1: [script] \2/p'
}

{
  check_includes
  check_file_length
  check_macros
  check_pragma_once
  check_ascii
  check_own_header_first
  check_headers_compile
  check_format
  check_scripts
} >"$work/findings.txt"
cat "$work/findings.txt"
if [[ -s $work/findings.txt ]]; then
  echo "$(grep -cE '^[^ ]+:[0-9]+: \[' "$work/findings.txt") violations; the rules: docs/style.md"
  exit 1
fi
echo "${#sources[@]} sources and ${#scripts[@]} scripts keep the rules"
