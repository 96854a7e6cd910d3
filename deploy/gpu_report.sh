# shellcheck shell=bash
# Sourced by gpu_check.sh: its table and its JSON, from part.sh's arrays and the files in $results.
# shellcheck disable=SC2154 # they are the script's

most_lines=60

json_text() { # json_text TEXT: as a string of JSON
  printf '"%s"' "$(tr -d '\000-\037' <<<"$1" | sed 's/[\\"]/\\&/g')"
}

passed() { # passed PART
  local i
  for i in "${!part_names[@]}"; do
    if [[ ${part_names[$i]} == "$1" ]]; then [[ ${part_results[$i]} == ok ]] && return; fi
  done
  return 1
}

under() { # under TITLE: the rows on the standard input, if there are any
  local rows
  rows=$(cat)
  if [[ -n $rows ]]; then printf '%s\n' "$1" "$rows"; fi
}

# "NAME US FLOOR_US FRACTION RATE UNIT" of every operation that was timed, also when not all were.
operation_rows() {
  [[ -f $results/operations.json ]] || return 0
  awk '/"name":/ { split($0, text, "\""); name = text[4]; sub("/real_time$", "", name) }
    /"real_time":/ { us = $2 + 0 }
    /"floor_us":/ { floor = $2 + 0 }
    /"fraction":/ { fraction = $2 + 0 }
    /"(GB|GFLOP)\/s":/ { unit = $1; gsub(/[":]/, "", unit); rate = $2 + 0 }
    /^ +}/ && name != "" {
      printf "%s %.1f %.1f %.3f %.1f %s\n", name, us, floor, fraction, rate, unit
      name = ""
    }' "$results/operations.json"
}

# With the micro-batch at which the last try's steps were.
step_rows() { # step_rows SHAPE PART [MORE]: of a part that passed; MORE follows the scheme's name
  local log=$results/${2// /-}.txt batch
  passed "$2" || return 0
  batch=$(sed -n 's/^micro-batches of \([0-9]*\):/\1/p' "$log" | tail -n 1)
  sed -nE "s/^\| train \{.*residual: ([A-Z_]+) \} \|/| $1 x $batch \1${3:-} |/p" "$log"
}

# Of a step's operations those that lose most time to their floor.
lossy_rows() {
  [[ -f $results/profile-of-1.3B.txt ]] || return 0
  sed -n '/^operation /,/^all operations/p' "$results/profile-of-1.3B.txt" | sed '1d;$d' |
    awk '{ print $(NF - 7) - $(NF - 2) "\t" $0 }' | sort -rn | sed -n 1,3p | cut -f2-
}

measurements() {
  head -n 1 "$results/card.txt"
  { step_rows 1.3B "steps of 1.3B" && step_rows 1.3B "replayed steps of 1.3B" ", replayed" &&
    step_rows 400M "steps of 400M" && step_rows 1.3B "two streams and one"; } |
    under "| shape x micro-batch, scheme | ms a step | tokens/s | of ceiling | activations MiB | over the first |"
  sed -n '/^|---/!{/^|/p}' "$results/against-PyTorch.txt" 2>/dev/null || true
  operation_rows | awk '{ printf "%-54s %10s %10s %9s %10s %s\n", $1, $2, $3, $4, $5, $6 }' |
    under "$(printf '%-54s %10s %10s %9s' operation us "floor us" fraction)"
  lossy_rows | under "step of 1.3B, furthest from the floor: calls, s, of steps, rate, floor s, of floor"
}

json_parts() {
  local i comma=
  for i in "${!part_names[@]}"; do
    printf '%s\n  {"part": %s, "result": "%s", "seconds": %d, "note": %s}' "$comma" \
      "$(json_text "${part_names[$i]}")" "${part_results[$i]}" "${part_seconds[$i]}" \
      "$(json_text "${part_notes[$i]}")"
    comma=,
  done
}

json_operations() {
  operation_rows | awk '{
    printf "%s\n  {\"name\": \"%s\", \"us\": %s, \"floor_us\": %s, ", comma, $1, $2, $3
    printf "\"fraction\": %s, \"rate\": %s, \"unit\": \"%s\"}", $4, $5, $6
    comma = ","
  }'
}

json_file() { # json_file KEY PART FILE: what a part wrote, if it passed
  if passed "$2" && [[ -s $results/$3 ]]; then printf ',\n"%s": %s' "$1" "$(<"$results/$3")"; fi
}

results_json() {
  printf '{"card": %s, "seconds": %d,\n"parts": [%s\n],\n"operations": [%s\n]' \
    "$(json_text "$(head -n 1 "$results/card.txt")")" "$SECONDS" "$(json_parts)" "$(json_operations)"
  json_file steps_1.3B "steps of 1.3B" steps-1.3B.json
  json_file replayed_steps_1.3B "replayed steps of 1.3B" replayed-1.3B.json
  json_file steps_400M "steps of 400M" steps-400M.json
  json_file two_streams_and_one "two streams and one" streams-1.3B.json
  json_file profile_1.3B "profile of 1.3B" profile.json
  json_file against_torch "against PyTorch" torch.json
  printf '}\n'
}

# Writes both and prints the table. Of measurements that are too many the last ones are in files only.
report() {
  local summary
  results_json >"$results/gpu_check.json"
  summary=$(part_summary) || true
  {
    measurements | sed -n "1,$((most_lines - $(wc -l <<<"$summary")))p"
    echo "$summary"
  } | tee "$results/table.txt"
}
