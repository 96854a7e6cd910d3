# shellcheck shell=bash
# Sourced by the scripts of this folder: runs one part of a script with its output in a log file.

part_names=()
part_results=() # ok, FAILED or SKIPPED
part_seconds=()
part_notes=() # why it was skipped, where its log is when it failed
part_failures=0

# part NAME LOG COMMAND...: runs the command with its output in LOG and prints one line with the time.
# Exit code 77 means that it cannot be done here, which a line "SKIPPED: REASON" of its output explains.
# On failure shows the log's tail, remembers it, and returns 1.
part() {
  local name=$1 log=$2 begin=$SECONDS status=0
  shift 2
  mkdir -p "$(dirname "$log")"
  "$@" >"$log" 2>&1 </dev/null || status=$?
  local seconds=$((SECONDS - begin)) result=ok note=
  if [[ $status -eq 77 ]]; then
    result=SKIPPED note=$(sed -n 's/^SKIPPED: //p' "$log" | tail -n 1)
    echo "$name: SKIPPED, $note"
  elif [[ $status -ne 0 ]]; then
    result=FAILED note=$log
    part_failures=$((part_failures + 1))
    tail -n 40 "$log" | sed 's/^/    /'
    echo "$name: FAILED (exit $status) after $seconds s; all of its output: $log"
  else
    echo "$name: ok, $seconds s"
  fi
  part_names+=("$name")
  part_results+=("$result")
  part_seconds+=("$seconds")
  part_notes+=("$note")
  [[ $result != FAILED ]]
}

# Prints every part with its result and time; returns 1 when one failed.
part_summary() {
  local i
  echo
  for i in "${!part_names[@]}"; do
    printf '%-28s %-7s %4s s   %s\n' "${part_names[$i]}" "${part_results[$i]}" "${part_seconds[$i]}" \
      "${part_notes[$i]}" | sed 's/ *$//'
  done
  printf '%-28s %-7s %4s s\n' "all parts" "" "$SECONDS"
  [[ $part_failures -eq 0 ]] && return 0
  echo "$part_failures failed"
  return 1
}
