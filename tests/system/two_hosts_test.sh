#!/bin/bash
# `mpirun --hostfile` over two hosts: the bits of one host; and whatever happens to a rank, to a host or
# to the cable ends the job within 20 seconds with a cause that has names.
# Usage: two_hosts_test.sh FOLDER_OF_THE_TEST_PROGRAMS
# shellcheck source=deploy/two_hosts.sh
source "$(dirname "$0")/../../deploy/two_hosts.sh"
isolate "$0" "$@"
# shellcheck source=tests/system/command_testing.sh
source "$(dirname "$0")/command_testing.sh"

limit=20 # seconds from a fault to the end of the last process
layout='parallel { tensor: 2 pipeline: 2 data: 2 } train { steps: 4 eval_every: 0 }'
place='\(tensor [01], pipeline [01], data [01]\)'
# Messages under way when a rank dies may never arrive: not every survivor waits for the dead one.
last_words="was waiting in .* for rank [0-9] $place on host (alpha|beta) \(during .*\) when it was told to end$"

make_two_hosts "$folder" || fail "no two hosts"
printf 'alpha slots=4\nbeta slots=4\n' >hostfile
# The line of docs/cluster.md, started on alpha; and no fault may hold up the test.
by_slot=(timeout --signal=KILL 120 "${on[@]}" alpha mpirun --hostfile hostfile
  --mca plm_rsh_agent "$remote_shell"
  --mca btl_tcp_if_include "$host_network" --mca oob_tcp_if_include "$host_network"
  --mca oob_tcp_keepalive_time 2 --mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 3)
by_node=("${by_slot[@]}" --map-by node) # every tensor pair across the cable

bytes_over_the_cable() { "${on[@]}" beta awk '$1 == "eth0:" { print $2 }' /proc/net/dev; }

equals_one_host() { # equals_one_host NAME MPIRUN...
  local name=$1 before
  launcher=("${@:2}")
  before=$(bytes_over_the_cable)
  run 0 8 train job.textproto --override="name: '$name' $layout"
  [ $(($(bytes_over_the_cable) - before)) -gt 30000 ] || fail "nothing went over the cable"
  ! grep -q "warning" "$output" || fail "a warning"
  same "metrics of $name" "$(digits "$name")" "$(digits one)"
  run 0 alone inspect runs/one/checkpoints "runs/$name/checkpoints"
  says '^([0-9]+) of \1 tensors identical; largest difference 0$'
  echo "equal to one host, $name: $(digits "$name" | wc -l) lines of metrics, $(tail -n 1 "$output")"
}

two_hosts_have_the_bits_of_one() {
  launcher=("${on[@]}" alpha mpirun)
  run 0 8 train job.textproto --override="name: 'one' $layout"
  equals_one_host by_slot "${by_slot[@]}"
  equals_one_host by_node "${by_node[@]}"
}

seconds_since() { awk -v now="$(date +%s.%N)" -v then="$1" 'BEGIN { printf "%.1f", now - then }'; }

# wait_until_nothing_is_left BEGIN: on either host, within the limit
wait_until_nothing_is_left() {
  local seconds left
  while true; do
    left="$(processes_of alpha) $(processes_of beta)"
    seconds=$(seconds_since "$1")
    awk -v s="$seconds" -v limit="$limit" 'BEGIN { exit !(s < limit) }' ||
      fail "after $seconds s, more than $limit; still running then: $left"
    [ "$left" != " " ] || return 0
    sleep 0.1
  done
}

# ends NAME MAPPING EXIT_CODES FAULT...: the fault ends a running job with one of these codes.
ends() {
  local name=$1 codes=$3 begin code=0
  local -n mapping=$2
  launcher=("${mapping[@]}")
  start "$name" 8 train job.textproto --override="name: '$name' $layout" \
    --override='train { steps: 1000000 } checkpoint { every_steps: 0 }'
  begin=$(date +%s.%N)
  "${@:4}"
  wait "$mpirun_pid" || code=$?
  [[ " $codes " == *" $code "* ]] || fail "$name: exit code $code instead of one of: $codes"
  echo "$name: mpirun ended after $(seconds_since "$begin") s with exit code $code"
  wait_until_nothing_is_left "$begin"
  echo "$name: nothing was left on either host after $(seconds_since "$begin") s. Last words, if any:"
  grep -E "^rank [0-9]|on node" "$output" | sed 's/^/    /'
}

kill_rank() { # kill_rank HOST RANK
  local pid
  for pid in $(processes_of "$1"); do
    if grep -qz "^OMPI_COMM_WORLD_RANK=$2$" "/proc/$pid/environ"; then kill -KILL "$pid"; fi
  done
}

faults_end_the_job() {
  ends rank_killed by_slot 137 kill_rank beta 5
  says "^mpirun noticed that process rank 5 .* on node beta exited on signal 9"
  says "^rank [0-9] $place on host (alpha|beta) $last_words"

  # mpirun may hear of the first dead rank before it hears of the dead daemon.
  ends host_killed by_node "205 137" kill_host beta
  says "(Remote daemon|process rank [4-7]).* on node beta"
  says "^rank [0-9] $place on host alpha $last_words"

  ends cable_cut by_node 205 cut_cable
  says "Remote daemon.* on node beta"
  says "^rank [0-9] $place on host alpha $last_words"
  mend_cable

  # Whoever would print the cause dies too: the ranks on the other host must not stay for ever.
  ends first_host_killed by_slot 137 kill_host alpha
}

two_hosts_have_the_bits_of_one
faults_end_the_job
