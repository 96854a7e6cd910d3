# shellcheck shell=bash
# Sourced by the scripts of this folder: runs one part of a script with its output in a log file.

part_names=()
part_results=()
part_failures=0

# part NAME LOG COMMAND...: runs the command with its output in LOG and prints one line with the time.
# On failure shows the log's tail, remembers it, and returns 1.
part() {
  local name=$1 log=$2 begin=$SECONDS status=0
  shift 2
  mkdir -p "$(dirname "$log")"
  "$@" >"$log" 2>&1 </dev/null || status=$?
  local seconds=$((SECONDS - begin))
  part_names+=("$name")
  if [[ $status -eq 0 ]]; then
    part_results+=("ok      $seconds s")
    echo "$name: ok, $seconds s"
    return 0
  fi
  part_results+=("FAILED  $seconds s   $log")
  part_failures=$((part_failures + 1))
  tail -n 40 "$log" | sed 's/^/    /'
  echo "$name: FAILED (exit $status) after $seconds s; all of its output: $log"
  return 1
}

# Prints every part with its result and time; returns 1 when one failed.
part_summary() {
  local i
  echo
  for i in "${!part_names[@]}"; do printf '%-28s %s\n' "${part_names[$i]}" "${part_results[$i]}"; done
  printf '%-28s %s\n' "all parts" "$SECONDS s"
  [[ $part_failures -eq 0 ]] && return 0
  echo "$part_failures failed"
  return 1
}
