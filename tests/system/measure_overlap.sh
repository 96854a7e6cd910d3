#!/bin/bash
# Times of a training step with and without overlap, on one host and on two that a cable of a given
# rate joins. Not a test: run it on a machine that does nothing else. Figures: docs/performance.md.
# Usage: measure_overlap.sh FOLDER_OF_THE_TEST_PROGRAMS [BLOCKS [RATE]]     as root; RATE: 1gbit
# shellcheck source=deploy/two_hosts.sh
source "$(dirname "$0")/../../deploy/two_hosts.sh"
isolate "$0" "$@"
set -u
program=$(realpath "$1/overlap_program") blocks=${2:-10} rate=${3:-1gbit}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMP_NUM_THREADS=1

make_two_hosts "$folder" || exit 1
printf 'alpha slots=1\nbeta slots=1\n' >hostfile
for host in alpha beta; do
  "${on[@]}" "$host" tc qdisc add dev eth0 root tbf rate "$rate" burst 256kb latency 50ms || exit 1
done
across=(mpirun --hostfile hostfile --mca plm_rsh_agent "$remote_shell"
  --mca btl_tcp_if_include "$host_network" --mca oob_tcp_if_include "$host_network")

for layout in 'data: 2' 'pipeline: 2' 'tensor: 2'; do
  echo "one host:"
  "${on[@]}" alpha mpirun -np 2 "$program" "$blocks" "parallel { $layout }"
done
for layout in 'data: 2' 'pipeline: 2'; do
  echo "two hosts, $rate:"
  "${on[@]}" alpha "${across[@]}" -np 2 "$program" "$blocks" "parallel { $layout }"
done
