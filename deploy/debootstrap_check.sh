#!/usr/bin/env bash
# Runs the README's two commands in a clean Debian 12: debootstrap, a clone of the committed tree, each
# command twice, with times. Needs root, network, and debootstrap (apt-get install debootstrap).
# Usage: deploy/debootstrap_check.sh [FOLDER [MIRROR]]   (default: a new folder under /var/tmp, kept)
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
root=${1:-$(mktemp -d /var/tmp/twinstream-debian12.XXXXXX)}
mirror=${2:-http://deb.debian.org/debian}
[[ $(id -u) -eq 0 ]] || { echo "debootstrap_check.sh: run this as root" >&2; exit 1; }
command -v debootstrap >/dev/null || {
  echo "debootstrap_check.sh: apt-get install debootstrap" >&2
  exit 1
}

echo "clean Debian 12 in $root"
[[ -f $root/etc/debian_version ]] || debootstrap --variant=minbase bookworm "$root" "$mirror"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
if [[ -d /etc/apt/apt.conf.d ]] && grep -rhs 'Proxy' /etc/apt/apt.conf.d >"$root/etc/apt/apt.conf.d/90proxy"; then
  echo "using this machine's apt proxy"
fi
rm -rf "$root/twinstream"
git clone --quiet "$repository" "$root/twinstream"

unmount() {
  for folder in dev/shm dev proc sys; do
    if mountpoint -q "$root/$folder"; then umount -l "$root/$folder"; fi
  done
}
trap unmount EXIT
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /dev "$root/dev"
mount --make-rslave "$root/dev"

# in_chroot COMMAND: runs it in the clone with a clean environment and prints its time.
in_chroot() {
  local begin=$SECONDS status=0
  env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM="${TERM:-dumb}" \
    http_proxy="${http_proxy:-}" https_proxy="${https_proxy:-}" \
    chroot "$root" bash -c "cd /twinstream && $1" || status=$?
  echo "=== $1: exit $status after $((SECONDS - begin)) s"
  return "$status"
}
in_chroot "bash deploy/quickstart.sh"
in_chroot "bash deploy/quickstart.sh"
in_chroot "bash deploy/test.sh"
in_chroot "bash deploy/test.sh"
