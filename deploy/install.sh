#!/usr/bin/env bash
# Installs the Debian packages that Twinstream needs and that are missing; does nothing, and needs no
# network, when none is. Usage: deploy/install.sh [build] [test] [full] [slurm]   (default: build)
#   build: compile and run;   test: plus the script and format checks;   full: plus clang-tidy;
#   slurm: what deploy/slurm_check.sh needs.
set -euo pipefail

declare -A package_sets=(
  [build]="g++ cmake ninja-build ccache openmpi-bin libopenmpi-dev protobuf-compiler libprotobuf-dev
           libabsl-dev libdnnl-dev nlohmann-json3-dev libgtest-dev libgmock-dev libbenchmark-dev
           bible-kjv"
  [test]="clang-format-14 shellcheck python3 iproute2"
  [full]="clang-tidy-14 libomp-14-dev"
  [slurm]="slurmctld slurmd slurm-client munge iproute2"
)

wanted=()
for name in "${@:-build}"; do
  if [[ -z ${package_sets[$name]:-} ]]; then
    echo "install.sh: unknown package set '$name'; there are: build, test, full, slurm" >&2
    exit 2
  fi
  read -r -d '' -a set_packages <<<"${package_sets[$name]}" || true
  wanted+=("${set_packages[@]}")
done

if ! command -v dpkg-query >/dev/null; then
  echo "install.sh: this is not Debian. Install these Debian 12 packages' equivalents yourself:" \
    "${wanted[*]}" >&2
  exit 1
fi

missing=()
for package in "${wanted[@]}"; do
  dpkg -s "$package" 2>/dev/null | grep -q '^Status: install ok installed' || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

# shellcheck source=/dev/null
release=$(. /etc/os-release && echo "${ID:-unknown} ${VERSION_ID:-}")
case $release in
  "debian 12") ;;
  "ubuntu 24.04") echo "install.sh: Ubuntu 24.04 is untested; the package names are Debian 12's" ;;
  *) echo "install.sh: $release is untested (Debian 12 is tested); trying Debian 12's package names" ;;
esac

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "install.sh: run this as root, or install sudo; missing: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "installing: ${missing[*]}"
apt_get() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=900 "$@"
}
apt_get update
apt_get install -y --no-install-recommends "${missing[@]}"
