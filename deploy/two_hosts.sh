# shellcheck shell=bash
# Sourced by scripts that need two hosts: makes alpha and beta on this machine, joined by a virtual
# cable. A host is a network, a host name, a host table and a /dev/shm of its own (Linux namespaces);
# the files are the same on both, as on a cluster's shared file system.
#
# `isolate` starts the script again as the first process of a process namespace. When it ends, however
# it ends, the kernel ends every process in there, and hosts and cable go with them. Nobody outside
# sees their names, so any number of such scripts may run at once.

# isolate SCRIPT ARGUMENTS...: returns in the isolated script. Where the machine does not allow that,
# says why and exits with 77.
isolate() {
  if [[ ${TWINSTREAM_ISOLATED:-} == yes ]]; then return; fi
  local namespaces=(unshare --mount --net --pid --fork --kill-child --mount-proc) answer
  if [[ $(id -u) -ne 0 ]]; then namespaces+=(--user --map-root-user); fi
  if ! answer=$("${namespaces[@]}" ip link add left type veth peer name right 2>&1); then
    echo "SKIPPED: $(basename "$1") needs two hosts, and this machine allows no network namespaces" \
      "joined by a veth: $answer. Run it as root with CAP_SYS_ADMIN and CAP_NET_ADMIN (a container:" \
      "--privileged), with the packages iproute2 and util-linux."
    exit 77
  fi
  TWINSTREAM_ISOLATED=yes exec "${namespaces[@]}" bash "$@"
}

# make_host NAME FOLDER: kept by a sleeping process, whose number is in FOLDER/NAME.host.
make_host() {
  unshare --net --uts --mount bash -c '
    hostname "$0" && mount --bind "$1/hosts" /etc/hosts && mount -t tmpfs tmpfs /dev/shm || exit
    ip link set lo up && exec -a "host $0" sleep infinity' "$1" "$2" &
  echo $! >"$2/$1.host"
  until [[ $(tr '\0' ' ' <"/proc/$!/cmdline") == "host $1 "* ]]; do
    kill -0 $! 2>/dev/null || return 1
    sleep 0.05
  done
}

plug_in() { # plug_in NAME ADDRESS
  "${on[@]}" "$1" ip address add "$2/24" dev eth0
  "${on[@]}" "$1" ip link set eth0 up
}

# make_two_hosts FOLDER: FOLDER, an absolute path, gets files and keeps them as long as the hosts are
# used. Sets
#   on                  "${on[@]}" HOST COMMAND... runs a command on a host, in FOLDER
#   remote_shell        what mpirun calls instead of ssh: --mca plm_rsh_agent "$remote_shell"
#   host_network        the addresses of the cable's ends: 10.77.0.1 of alpha and 10.77.0.2 of beta
make_two_hosts() {
  local folder=$1
  # shellcheck disable=SC2034 # for the scripts that source this
  host_network=10.77.0.0/24
  printf '127.0.0.1 localhost\n10.77.0.1 alpha\n10.77.0.2 beta\n' >"$folder/hosts"
  cat >"$folder/on" <<ON
#!/bin/bash
exec nsenter --target "\$(cat "$folder/\$1.host")" --net --uts --mount --wd -- "\${@:2}"
ON
  cat >"$folder/remote_shell" <<REMOTE
#!/bin/bash
exec "$folder/on" "\$1" bash -c "\${*:2}"
REMOTE
  chmod +x "$folder/on" "$folder/remote_shell"
  on=("$folder/on")
  # shellcheck disable=SC2034
  remote_shell=$folder/remote_shell
  (cd "$folder" && make_host alpha "$folder" && make_host beta "$folder") || return 1
  ip link add eth0 netns "$(cat "$folder/alpha.host")" type veth \
    peer name eth0 netns "$(cat "$folder/beta.host")"
  plug_in alpha 10.77.0.1
  plug_in beta 10.77.0.2
}

processes_of() { # processes_of HOST: all but the one that keeps the host
  local keeper process
  keeper=$(cat "$(dirname "${on[0]}")/$1.host")
  for process in /proc/[0-9]*; do
    if [[ ${process#/proc/} != "$keeper" && $process/ns/net -ef /proc/$keeper/ns/net ]]; then
      echo "${process#/proc/}"
    fi
  done
}

kill_host() { # kill_host HOST: everything that runs on it, at once
  local processes
  mapfile -t processes < <(processes_of "$1")
  kill -KILL "${processes[@]}"
}

cut_cable() { "${on[@]}" beta ip link set eth0 down; }
mend_cable() { "${on[@]}" beta ip link set eth0 up; }
