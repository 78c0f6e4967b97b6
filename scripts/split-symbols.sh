#!/usr/bin/env bash
# Takes the symbols out of a program and puts them beside it: PROGRAM becomes small enough to ship, PROGRAM.debug has what
# debuggers, profilers and backtraces need. They find it by a link in the program, as long as it lies beside it or below
# /usr/lib/debug.
#
#   scripts/split-symbols.sh PROGRAM
set -euo pipefail

die() {
  echo "split-symbols: $*" >&2
  exit 1
}

[ $# = 1 ] || die "usage: scripts/split-symbols.sh PROGRAM"
program=$1
[ -f "$program" ] || die "$program: no such file"
command -v objcopy >/dev/null && command -v readelf >/dev/null || die "objcopy or readelf is missing (Debian: apt-get install binutils); $program keeps its symbols"

# Cargo puts the whole program back only when it has built something.
if readelf --section-headers --wide "$program" | grep -q ' \.gnu_debuglink '; then exit 0; fi

# New files, then renamed: a program that runs is left alone, and so is cargo's own copy, which is the same file by another name.
part=$(mktemp -d "$(dirname "$program")/.split.XXXXXX")
trap 'rm -rf "$part"' EXIT
name=$(basename "$program")
objcopy --only-keep-debug --compress-debug-sections "$program" "$part/$name.debug"
chmod a-x "$part/$name.debug"
objcopy --strip-all --add-gnu-debuglink="$part/$name.debug" "$program" "$part/$name"
mv "$part/$name.debug" "$part/$name" "$(dirname "$program")"
