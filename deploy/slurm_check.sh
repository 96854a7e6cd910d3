#!/usr/bin/env bash
# Proves deploy/train.sbatch on a real SLURM of two nodes, which it sets up on this machine for
# itself alone (deploy/two_hosts.sh) and takes down again: two slurmd, slurmctld, munged, with keys,
# sockets and logs in a new folder. A killed rank ends a job within seconds. Another job trains on
# both nodes until its time limit comes near, saves, queues itself again, goes on from its
# checkpoint and finishes. About four minutes; needs root, and Debian 12's packages, which it
# installs where they are missing.
# Usage: deploy/slurm_check.sh [FOLDER_OF_THE_PROGRAM]   (default: build)
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
source "$repository/deploy/two_hosts.sh"
program_folder=$(realpath "${1:-build}")
[[ -x $program_folder/twinstream ]] || {
  echo "slurm_check.sh: there is no $program_folder/twinstream: build it first" >&2
  exit 2
}
[[ ${TWINSTREAM_ISOLATED:-} == yes ]] || bash "$repository/deploy/install.sh" slurm
isolate "$0" "$@"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export SLURM_CONF=$folder/slurm.conf

fail() { # fail MESSAGE: with everything that may explain it
  echo "FAILED: $1"
  tail -n 20 "$folder"/runs/*.txt "$folder"/log/* 2>/dev/null || true
  exit 1
}

wait_until() { # wait_until SECONDS WHAT COMMAND...
  local begin=$SECONDS limit=$1 what=$2
  shift 2
  until "$@"; do
    [[ $((SECONDS - begin)) -lt $limit ]] || fail "$what: not within $limit s"
    sleep 0.5
  done
  echo "$what: yes, after $((SECONDS - begin)) s"
}

write_configuration() {
  mkdir -p log state spool/alpha spool/beta tmp.alpha tmp.beta runs build
  cat >slurm.conf <<CONF
ClusterName=check
SlurmctldHost=alpha(10.77.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
TmpFS=$folder/tmp.%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=pmix
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
NodeName=alpha NodeAddr=10.77.0.1 CPUs=2 State=UNKNOWN
NodeName=beta NodeAddr=10.77.0.2 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP
CONF
}

start_munge() {
  (umask 077 && head -c 1024 /dev/urandom >munge.key)
  munged --force --foreground --num-threads=2 --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
    --pid-file="$folder/munge.pid" --log-file="$folder/log/munge" --seed-file="$folder/munge.seed" \
    >log/munge.output 2>&1 &
  wait_until 60 "munged answers" test -S munge.socket
}

start_slurm() {
  "${on[@]}" alpha slurmctld -D >log/slurmctld 2>&1 &
  local host
  for host in alpha beta; do "${on[@]}" "$host" slurmd -D -N "$host" >"log/slurmd.$host" 2>&1 & done
  wait_until 240 "both nodes are idle" both_nodes_are_idle
}
both_nodes_are_idle() { [[ $("${on[@]}" alpha sinfo --noheader --format='%D %t') == "2 idle" ]]; }

# What a user of the cluster has: a repository with a built program, a job and its data.
prepare_job() {
  ln -s "$program_folder/twinstream" build/twinstream
  cp "$repository/deploy/train.sbatch" train.sbatch
  head -c 4000 /dev/urandom | tr '\000-\377' 'a-h' | sed 's/./&\x00/g' >tokens.bin
  write_job 1000000
}
write_job() { # write_job STEPS
  cat >job.textproto <<JOB
name: "slurm"
model { residual: SIAMESE_HYBRID_PRE layers: 2 hidden: 16 heads: 2 ffn: 24 vocabulary: 256 sequence: 8 }
data { train { path: "tokens.bin" } }
parallel { tensor: 2 pipeline: 2 }
train { steps: $1 global_batch: 4 device: CPU }
checkpoint { every_steps: 0 }
metrics { every_steps: 10 }
JOB
}

submit() {
  job=$("${on[@]}" alpha sbatch --parsable --nodes=2 --ntasks-per-node=2 --time=3 --signal=USR1@60 \
    train.sbatch job.textproto)
  echo "submitted: job $job"
}

state_is() { [[ $("${on[@]}" alpha squeue --noheader --jobs="$job" --states=all --format=%T) == "$1" ]]; }
ranks_on() { # ranks_on HOST: their process numbers
  local process
  for process in $(processes_of "$1"); do
    if [[ $(cat "/proc/$process/comm" 2>/dev/null) == twinstream ]]; then echo "$process"; fi
  done
}
two_ranks_on_each() {
  [[ $(ranks_on alpha | wc -l) -eq 2 && $(ranks_on beta | wc -l) -eq 2 ]]
}
has_trained() { [[ -s runs/slurm/metrics.jsonl ]]; }
has_saved() { [[ -s runs/slurm/checkpoints/latest ]]; }
saved_step() { sed 's/step_0*//' runs/slurm/checkpoints/latest; }

starts() {
  submit
  wait_until 240 "two ranks on either node" two_ranks_on_each
  wait_until 240 "it trains" has_trained
}

a_killed_rank_ends_a_job() {
  starts
  kill -KILL "$(ranks_on beta | head -n 1)"
  wait_until 60 "a killed rank ends it" state_is FAILED
  grep "Killed" "runs/slurm-$job.txt" || fail "nobody says that a rank was killed"
  rm -r runs/slurm
}

trains_until_its_time_is_up() {
  starts
  wait_until 300 "it saves before its time limit" has_saved
  wait_until 240 "it is queued again" state_is PENDING
  grep -q "stopped by a signal after step" "runs/slurm-$job.txt" || fail "it does not say why it stopped"
}

# Few steps more, so that the second session reaches the end.
goes_on_and_finishes() {
  local first
  first=$(saved_step)
  write_job $((first + 100))
  "${on[@]}" alpha scontrol update "jobid=$job" starttime=now # else after two minutes
  wait_until 240 "it runs again" two_ranks_on_each
  wait_until 240 "it finishes" state_is COMPLETED
  [[ $(saved_step) -eq $((first + 100)) ]] || fail "the last checkpoint is of step $(saved_step)"
  grep -q "going on from .*step_0*$first, " "runs/slurm-$job.txt" || fail "it did not go on from step $first"
  echo "steps 1 to $first in the first session, to $((first + 100)) in the second"
}

write_configuration
make_two_hosts "$folder"
start_munge
start_slurm
prepare_job
a_killed_rank_ends_a_job
trains_until_its_time_is_up
goes_on_and_finishes
echo "its output:"
sed 's/^/    /' "runs/slurm-$job.txt" | grep -v " step "
