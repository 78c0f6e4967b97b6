#!/usr/bin/env bash
# Makes a container image of the Debian package in target/dist, without a daemon: target/dist/millrace-VERSION-oci.tar. As root.
#
#   scripts/oci.sh [--check]
#
# --check: also starts the image as its configuration says, with a read-only root and without a network, and fetches a film from it.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=$(sed -n '/^\[workspace.package\]/,/^version/s/^version = "\(.*\)"/\1/p' Cargo.toml)
PACKAGE=target/dist/millrace_${VERSION}_amd64.deb
WORK=target/oci
IMAGE=$WORK/image
SUITE=bookworm
SECONDS_TO_WAIT=60

say() { printf 'oci: %s\n' "$*"; }
die() {
  echo "oci: $*" >&2
  exit 1
}

[ "$(id -u)" = 0 ] || die "not root: files of the image belong to users of their own; run: sudo make oci"
for program in debootstrap umoci; do
  command -v $program >/dev/null || die "$program is missing; install it: scripts/deps.sh oci"
done
[ -f "$PACKAGE" ] || die "$PACKAGE is missing; make it: make dist"

# Kept for the next time: it is most of the work.
if [ ! -e $WORK/debian.tar ]; then
  say "getting Debian and ffmpeg"
  rm -rf $WORK/debian
  mkdir -p $WORK
  debootstrap --variant=minbase --include=adduser,ffmpeg $SUITE $WORK/debian >$WORK/debootstrap.log || die "debootstrap failed; see $WORK/debootstrap.log"
  rm -rf $WORK/debian/var/{cache/apt,lib/apt/lists,log}/*
  tar -C $WORK/debian --one-file-system -cf $WORK/debian.tar.part .
  mv $WORK/debian.tar.part $WORK/debian.tar
  rm -rf $WORK/debian
fi

rm -rf $IMAGE $WORK/bundle
umoci init --layout $IMAGE
umoci new --image $IMAGE:"$VERSION"
umoci unpack --image $IMAGE:"$VERSION" $WORK/bundle
rootfs=$WORK/bundle/rootfs
tar -C $rootfs -xf $WORK/debian.tar
cp "$PACKAGE" $rootfs/millrace.deb
chroot $rootfs dpkg --install /millrace.deb >$WORK/install.log 2>&1 || die "the package cannot be installed; see $WORK/install.log"
rm $rootfs/millrace.deb
umoci repack --image $IMAGE:"$VERSION" $WORK/bundle
umoci config --image $IMAGE:"$VERSION" --config.user millrace --config.stopsignal SIGTERM --config.volume /var/lib/millrace \
  --config.exposedports 8554/tcp --config.exposedports 8080/tcp --config.exposedports 6970-6971/udp \
  --config.cmd millrace --config.cmd serve --config.cmd --config --config.cmd /etc/millrace.toml
umoci gc --layout $IMAGE
tar -C $IMAGE --sort=name --owner=0 --group=0 --numeric-owner -cf "target/dist/millrace-$VERSION-oci.tar" .
rm -rf $WORK/bundle
say "target/dist/millrace-$VERSION-oci.tar: $(du -h "target/dist/millrace-$VERSION-oci.tar" | cut -f1)"
[ "${1-}" = --check ] || exit 0

# --- check ----------------------------------------------------------------------------------------------------------

for program in systemd-nspawn python3 ffmpeg curl; do
  command -v $program >/dev/null || die "$program is missing; install it: scripts/deps.sh dist-check"
done
umoci unpack --image $IMAGE:"$VERSION" $WORK/bundle
configured() { python3 -c "import json; process = json.load(open('$WORK/bundle/config.json'))['process']; print($1)"; }
[ "$(configured "process['user']['uid']")" != 0 ] || die "the image runs as root; look at --config.user"
# As a new volume: with the content and the owner that the image has there.
rm -rf $WORK/volume
cp -a $rootfs/var/lib/millrace $WORK/volume
ffmpeg -v error -nostdin -y -f lavfi -i testsrc2=duration=5 -c:v libx264 -preset ultrafast $WORK/volume/films/film.mp4
readarray -t command < <(configured "'\n'.join(process['args'])")
SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 systemd-nspawn --quiet --directory=$rootfs --read-only --private-network --register=no --keep-unit --as-pid2 \
  --user=millrace --tmpfs=/tmp:mode=1777 --bind="$PWD/$WORK/volume:/var/lib/millrace" --console=pipe "${command[@]}" </dev/null >$WORK/run.log 2>&1 &
container=$!
trap 'kill $container 2>/dev/null; wait $container; rm -rf $WORK/bundle $WORK/volume' EXIT
SECONDS=0
has_film() {
  local inner
  inner=$(pgrep --parent $container | head -n 1) && nsenter --target "$inner" --net -- curl -sfo $WORK/film.ts http://127.0.0.1:8080/titles/film.ts
}
until has_film; do
  [ $SECONDS -lt $SECONDS_TO_WAIT ] || die "no film from the container within $SECONDS_TO_WAIT s; $(tail -n 5 $WORK/run.log)"
  sleep 0.5
done
pictures=$(ffmpeg -v error -nostdin -i $WORK/film.ts -map 0:v -f framemd5 - | grep -vc '^#')
[ "$pictures" = 125 ] || die "the film from the container has $pictures pictures, not 125"
say "the image starts with a read-only root as user $(configured "process['user']['uid']") and serves an MP4 with all its pictures"
