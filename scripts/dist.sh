#!/usr/bin/env bash
# Makes the packages of a release in target/dist: millrace_VERSION_amd64.deb, millrace-lab_VERSION_amd64.deb and
# millrace-VERSION-x86_64-linux.tar.gz. The same programs give the same packages, byte by byte.
#
#   scripts/dist.sh [BIN]
#
# BIN: folder with millrace, millrace-lab, millrace-manual and libmillrace_preload.so [default: target/release].
# VERSION in the environment: instead of that in Cargo.toml. The check of upgrades needs a second one.
set -euo pipefail
cd "$(dirname "$0")/.."

# The oldest C library that the programs run with: Debian 12, Ubuntu 22.04, RHEL 9 (docs/guide/install.md).
GLIBC=2.34
BIN=${1:-target/release}
PARTS=scripts/dist
VERSION=${VERSION:-$(sed -n '/^\[workspace.package\]/,/^version/s/^version = "\(.*\)"/\1/p' Cargo.toml)}
MAINTAINER='The Millrace contributors <millrace@packages.invalid>'
OUT=target/dist
STAGE=$OUT/stage

say() { printf 'dist: %s\n' "$*"; }
die() {
  echo "dist: $*" >&2
  exit 1
}

[ "$(uname -m)" = x86_64 ] || die "this is $(uname -m): packages are made for x86_64 only; build on such a machine"
for program in dpkg-deb objdump gzip ffmpeg; do
  command -v $program >/dev/null || die "$program is missing; apt-get install dpkg binutils gzip ffmpeg"
done
for file in millrace millrace-lab millrace-manual libmillrace_preload.so; do
  [ -f "$BIN/$file" ] || die "$BIN/$file is missing; make dist builds it"
done

# All times in the packages are that of the commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
export LC_ALL=C TZ=UTC

# Programs that need a newer C library than the guide states would not start on the systems that it lists.
for file in millrace millrace-lab libmillrace_preload.so; do
  needed=$(objdump -T "$BIN/$file" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
  [ "$(printf '%s\n' "$needed" GLIBC_$GLIBC | sort -V | tail -n 1)" = GLIBC_$GLIBC ] ||
    die "$file: needs ${needed/_/ }, newer than the packages' GLIBC $GLIBC; build on an older system, or change GLIBC here and in docs/guide/install.md"
  say "$file needs ${needed/_/ }, at most $GLIBC is allowed"
done

rm -rf "$STAGE"
mkdir -p "$STAGE"

# --- what all packages share ---------------------------------------------------------------------------------------

shared=$STAGE/shared
mkdir -p "$shared"
"$BIN/millrace-manual" "$shared"
"$BIN/millrace" config list --toml >"$shared/millrace.toml.defaults"
# The service keeps films and titles below /var/lib/millrace.
sed -e 's|^#folders = .*|folders = ["/var/lib/millrace/films"]|' -e 's|^#store =.*|store = "/var/lib/millrace/store"|' \
  "$shared/millrace.toml.defaults" >"$shared/millrace.toml"
[ "$(grep -c '^[a-z]' "$shared/millrace.toml")" = 2 ] ||
  die "millrace.toml: folders or store not found in 'millrace config list --toml'; adapt the names in scripts/dist.sh"
cargo xtask notices >"$shared/NOTICES"
# The film of `millrace demo`, which needs no ffmpeg then.
mkdir "$shared/demo"
"$BIN/millrace" demo --write-film "$shared/demo/test-picture.ts"

# put MODE FROM... TO: copies into a folder that is made if it does not exist.
put() {
  local mode=$1 to=${*: -1}
  install -d -m 0755 "$to"
  install -m "$mode" "${@:2:$#-2}" "$to"
}

# --- Debian packages ------------------------------------------------------------------------------------------------

# deb NAME DEPENDS-AND-MORE DESCRIPTION: packs what lies in $STAGE/NAME.
deb() {
  local name=$1 root=$STAGE/$1 doc=$STAGE/$1/usr/share/doc/$1
  { cat $PARTS/copyright; sed -e 1,2d -e 's/^$/./' -e 's/^/ /' LICENSE-MIT; } >"$STAGE/copyright"
  put 0644 "$STAGE/copyright" "$doc"
  put 0644 "$shared/NOTICES" "$doc"
  printf '%s (%s) stable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n -- %s  %s\n' \
    "$name" "$VERSION" "$MAINTAINER" "$(date -Rd @"$SOURCE_DATE_EPOCH")" >"$doc/changelog"
  put 0644 CHANGELOG.md "$doc"
  find "$doc" "$root/usr/share/man" -type f \( -name '*.1' -o -name changelog -o -name CHANGELOG.md -o -name NOTICES \) -exec gzip -9n {} +
  mkdir -p "$root/DEBIAN"
  (cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\n' | sort | xargs -d '\n' md5sum >DEBIAN/md5sums)
  {
    printf 'Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: %s\n' "$name" "$VERSION" "$MAINTAINER"
    printf 'Installed-Size: %s\nSection: video\nPriority: optional\n%s\nDescription: %s\n' \
      "$(du -k --apparent-size -s "$root" | cut -f1)" "$2" "$3"
  } >"$root/DEBIAN/control"
  chmod -R u=rwX,go=rX "$root"
  dpkg-deb --root-owner-group --uniform-compression -Zxz --build "$root" "$OUT/${name}_${VERSION}_amd64.deb" >/dev/null
}

root=$STAGE/millrace
put 0755 "$BIN/millrace" "$root/usr/bin"
put 0644 "$BIN/libmillrace_preload.so" "$root/usr/lib/millrace"
put 0644 $PARTS/millrace.service "$root/usr/lib/systemd/system"
put 0644 "$shared/millrace.toml" "$root/etc"
put 0644 README.md "$root/usr/share/doc/millrace"
cp -r docs "$root/usr/share/doc/millrace/"
cp -r "$shared"/{man,bash-completion,zsh,fish} "$root/usr/share/"
rm "$root"/usr/share/man/man1/millrace-{load,bench}*.1
put 0644 "$shared/demo/test-picture.ts" "$root/usr/share/millrace/demo"
put 0755 $PARTS/{postinst,prerm,postrm} "$root/DEBIAN"
echo /etc/millrace.toml >"$root/DEBIAN/conffiles"
deb millrace "Depends: libc6 (>= $GLIBC), libgcc-s1, adduser
Recommends: ffmpeg
Suggests: millrace-lab" "media-on-demand server with RTSP, HLS and a web page
 Serves a folder of films to many viewers from one copy in memory. Viewers
 pause and seek; films that are no MPEG-TS are remuxed by ffmpeg."

root=$STAGE/millrace-lab
put 0755 "$BIN/millrace-lab" "$root/usr/bin"
put 0644 "$shared"/man/man1/millrace-{load,bench}*.1 "$root/usr/share/man/man1"
echo .so man1/millrace-bench.1 >"$root/usr/share/man/man1/millrace-lab.1"
deb millrace-lab "Depends: libc6 (>= $GLIBC), libgcc-s1, millrace (= $VERSION)
Recommends: ffmpeg, iproute2" "benchmarks and load generator for media servers
 Adds the commands 'millrace bench' and 'millrace load'. They measure how many
 viewers a machine carries and what each of them receives."

# --- archive for every distribution ---------------------------------------------------------------------------------

# bin, lib and share are for /usr/local.
name=millrace-$VERSION-x86_64-linux
root=$STAGE/$name
put 0755 "$BIN/millrace" "$BIN/millrace-lab" "$root/bin"
put 0644 "$BIN/libmillrace_preload.so" "$root/lib/millrace"
sed 's|/usr/bin/millrace|/usr/local/bin/millrace|' $PARTS/millrace.service >"$STAGE/millrace.service"
put 0644 "$STAGE/millrace.service" "$root/lib/systemd/system"
mkdir -p "$root/share"
cp -r "$shared/man" "$shared/bash-completion" "$shared/fish" "$root/share/"
put 0644 "$shared/zsh/vendor-completions/_millrace" "$root/share/zsh/site-functions"
put 0644 "$shared/demo/test-picture.ts" "$root/share/millrace/demo"
put 0644 README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT "$shared/NOTICES" "$shared/millrace.toml" "$root"
cp -r docs "$root/"
chmod -R u=rwX,go=rX "$root"
tar -C "$STAGE" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -cf - "$name" | gzip -9n >"$OUT/$name.tar.gz"

rm -rf "$STAGE"
(cd "$OUT" && sha256sum ./*"$VERSION"* >"SHA256SUMS")
say "in $OUT:"
(cd "$OUT" && du -h --apparent-size ./*"$VERSION"*)
