#!/usr/bin/env bash
# Packs Twinstream with its CUDA backend, Open MPI and the libraries of both for a machine that has a
# card and CUDA 13 but none of our packages: deploy/gpu_check.sh runs from it, `. env.sh` gives a shell
# its programs. Any path will do, and another one later.
# Usage: deploy/bundle.sh [ARCHIVE.tar.xz]   (default: build/twinstream-bundle.tar.xz)
set -euo pipefail
cd "$(dirname "$0")/.."

archive=$(realpath -m "${1:-build/twinstream-bundle.tar.xz}")
limit_mib=60
programs=(twinstream tests/{cuda_device,backends}_test tests/{train,ops}_benchmark)
system=/usr/lib/$(gcc -print-multiarch)
plugins=lib/openmpi3 pmix=lib/pmix2

cmake --preset release
if ! grep -q '^CMAKE_CUDA_ARCHITECTURES:' build/CMakeCache.txt; then
  echo "bundle.sh: this build has no CUDA backend; install nvcc, cuBLASLt and NCCL, or set CUDA_HOME" >&2
  exit 1
fi
cmake --build build --target "${programs[@]##*/}" twinstream_cuda --parallel "$(nproc)"

staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
bundle=$staging/twinstream-bundle
mkdir -p "$bundle"/{bin,lib,$plugins,$pmix/lib/pmix,etc,share/openmpi,include}

for program in "${programs[@]}"; do install -s "build/$program" "$bundle/bin/"; done
install -s build/twinstream_cuda.so "$bundle/bin/"
install "$(realpath /usr/bin/mpirun)" "$bundle/bin/mpirun"
install /usr/bin/orted "$bundle/bin/"

libraries_of() { # libraries_of FILE...: "name path" of each one that the loader would take
  ldd "$@" 2>/dev/null | awk '$3 ~ /^\// { print $1, $3 }' | sort -u
}
# What every machine has, and newer; what belongs to its CUDA.
left_out='^(ld-linux|lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s|cuda|cudart|cublas|cublasLt|nccl)\.so)'
copy_libraries() { # copy_libraries FILE...
  libraries_of "$@" | while read -r name path; do
    [[ $name =~ $left_out ]] || install -m 644 "$path" "$bundle/lib/$name"
  done
}
copy_libraries "$bundle"/bin/* "$system/openmpi/lib/openmpi3/mca_pmix_ext3x.so"
# Of Open MPI's plugins those for one host or plain networks: the others want libraries of their own.
for plugin in "$system"/openmpi/lib/openmpi3/mca_*.so "$system"/pmix2/lib/pmix/*.so; do
  while read -r name _; do
    [[ $name =~ $left_out || -e $bundle/lib/$name ]] || continue 2
  done < <(libraries_of "$plugin")
  case $plugin in
    */pmix/*) install -m 644 "$plugin" "$bundle/$pmix/lib/pmix/" ;;
    *) install -m 644 "$plugin" "$bundle/$plugins/" ;;
  esac
done
cp -r /usr/share/openmpi/. "$bundle/share/openmpi/"
cp -rL /etc/openmpi "$bundle/etc/"
cp -r "$system"/pmix2/share "$bundle/$pmix/" 2>/dev/null || true

# What the CUDA backend is compiled from, for a CUDA that the shipped one does not fit.
cp -r core "$bundle/core"
rm -rf "$bundle/core/cpu" "$bundle/core/cuda/emulated"
cp -rL /usr/include/absl "$bundle/include/"
cp -L "$(sed -n 's/^NCCL_INCLUDE:PATH=//p' build/CMakeCache.txt)/nccl.h" "$bundle/include/"

cp -r tests/golden "$bundle/golden"
cp deploy/gpu_{check,report}.sh deploy/part.sh tests/benchmarks/{compare_torch,torch_twin}.py LICENSE "$bundle/"
cat >"$bundle/env.sh" <<'ENV'
# shellcheck shell=bash
# Sourced: the bundle's programs, wherever it lies.
bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PATH=$bundle/bin:$PATH LD_LIBRARY_PATH=$bundle/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export OPAL_PREFIX=$bundle OPAL_LIBDIR=$bundle/lib OPAL_PKGLIBDIR=$bundle/lib/openmpi3
export OPAL_BINDIR=$bundle/bin OPAL_SYSCONFDIR=$bundle/etc/openmpi
export OPAL_DATADIR=$bundle/share OPAL_PKGDATADIR=$bundle/share/openmpi
export OMPI_MCA_mca_base_component_path=$OPAL_PKGLIBDIR
export PMIX_INSTALL_PREFIX=$bundle/lib/pmix2
export PMIX_MCA_mca_base_component_path=$bundle/lib/pmix2/lib/pmix
export OMPI_MCA_plm_rsh_agent=/bin/false # one host: nothing is started elsewhere
export OMPI_MCA_btl_vader_single_copy_mechanism=none # containers may forbid reading other processes
export TWINSTREAM_GOLDEN_DIR=$bundle/golden
ENV

# The newest version of glibc that something in it needs.
find "$bundle"/bin "$bundle"/lib -type f -print0 | { xargs -0 objdump -T 2>/dev/null || true; } |
  grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1 | cut -d_ -f2 >"$bundle/glibc"

mkdir -p "$(dirname "$archive")"
tar -C "$staging" --sort=name --owner=0 --group=0 -cf - twinstream-bundle | xz -T0 -3 >"$archive.new"
mv "$archive.new" "$archive"
bytes=$(stat -c %s "$archive")
echo "$archive: $((bytes >> 20)) MiB, unpacked $(du -sm "$bundle" | cut -f1) MiB"
if ((bytes > limit_mib << 20)); then
  echo "bundle.sh: more than $limit_mib MiB" >&2
  exit 1
fi
