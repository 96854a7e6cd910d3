#!/usr/bin/env bash
# Joins the objects of one instruction set to one, in which inline functions of others (std's, core's)
# are local, with the instruction set behind their names: of those that are not, the linker keeps one
# copy for the whole program, and it must not keep one that only some machines run. Usage:
# join_objects.sh INSTRUCTION-SET OUTPUT OBJECT...   LD (GNU's), NM and OBJCOPY name the tools.
set -euo pipefail
: "${LD:?}" "${NM:?}" "${OBJCOPY:?}"
instruction_set=$1 output=$2
trap 'rm -f "$output".{whole,names,renamed,local}' EXIT
"$LD" -r --force-group-allocation -o "$output.whole" "${@:3}"
# What is weak (u, V, W) and does not name the instruction set, which is a namespace.
"$NM" --defined-only "$output.whole" |
  awk -v ours="$instruction_set" '$2 ~ /[uVW]/ && $3 !~ ours {print $3, $3 "." ours}' >"$output.names"
"$OBJCOPY" --redefine-syms="$output.names" "$output.whole" "$output.renamed"
cut -d " " -f 2 "$output.names" >"$output.local"
"$OBJCOPY" --localize-symbols="$output.local" "$output.renamed" "$output"
