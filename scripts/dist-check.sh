#!/usr/bin/env bash
# Checks the packages in target/dist as an administrator uses them: install, start, play, upgrade, remove, purge, install again,
# then the archive. All of it in a container with Debian and systemd whose changes are in memory, without a network; as root.
#
#   scripts/dist-check.sh [BIN]
#
# BIN: as for scripts/dist.sh, which makes the packages of the next version. The Debian system stays in target/dist-check.
# shellcheck disable=SC2317  # functions are called by `must` and `until_so`
set -euo pipefail
cd "$(dirname "$0")/.."

BIN=${1:-target/release}
OUT=target/dist
WORK=target/dist-check
BASE=$WORK/debian
SUITE=bookworm
# Exposure of the unit, of 100, as `systemd-analyze security` computes it and CI checks it.
EXPOSURE=30
PICTURES=250
SECONDS_TO_WAIT=60
VERSION=$(sed -n '/^\[workspace.package\]/,/^version/s/^version = "\(.*\)"/\1/p' Cargo.toml)
NEXT=${VERSION%.*}.$((${VERSION##*.} + 1))

say() { printf 'dist-check: %s\n' "$*"; }
die() {
  echo "dist-check: $*" >&2
  exit 1
}

[ "$(id -u)" = 0 ] || die "not root: a container needs it; run: sudo make dist CHECK=1"
for program in debootstrap systemd-nspawn systemd-analyze lintian ffmpeg curl; do
  command -v $program >/dev/null || die "$program is missing; install it: scripts/deps.sh dist"
done

# --- without a container --------------------------------------------------------------------------------------------

mkdir -p $WORK/packages
lintian --fail-on error --tag-display-limit 0 "$OUT"/millrace{,-lab}_"${VERSION}"_amd64.deb
say "lintian: no error"
systemd-analyze security --offline=true --no-pager --threshold=$EXPOSURE scripts/dist/millrace.service >$WORK/security.log ||
  die "millrace.service: exposed more than $EXPOSURE of 100; see $WORK/security.log"
say "unit: $(tail -n 1 $WORK/security.log), at most $EXPOSURE of 100 is allowed"

sums=$(cat $OUT/SHA256SUMS)
scripts/dist.sh "$BIN" >/dev/null
[ "$sums" = "$(cat $OUT/SHA256SUMS)" ] || die "a second run of scripts/dist.sh gave other packages; compare them with diffoscope"
say "packages: a second run gave the same bytes"
cp $OUT/millrace*"$VERSION"* $WORK/packages/
VERSION=$NEXT scripts/dist.sh "$BIN" >/dev/null
mv $OUT/millrace{,-lab}_"$NEXT"_amd64.deb $WORK/packages/
rm $OUT/millrace-"$NEXT"-x86_64-linux.tar.gz
echo "$sums" >$OUT/SHA256SUMS
ffmpeg -v error -nostdin -y -f lavfi -i "testsrc2=size=320x180:rate=25" -frames:v $PICTURES -c:v libx264 -preset ultrafast -f mpegts $WORK/packages/film.ts

if [ ! -e $BASE/complete ]; then
  say "making a Debian system in $BASE"
  rm -rf $BASE
  debootstrap --variant=minbase --include=systemd,systemd-sysv,adduser $SUITE $BASE >$WORK/debootstrap.log || die "debootstrap failed; see $WORK/debootstrap.log"
  touch $BASE/complete
fi

# --- container ------------------------------------------------------------------------------------------------------

# --volatile: changes go into memory. --register, --keep-unit: this machine needs no systemd of its own.
SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 systemd-nspawn --quiet --directory=$BASE --volatile=overlay --boot --private-network --register=no \
  --keep-unit --bind-ro="$PWD/$WORK/packages:/packages" --console=read-only </dev/null >$WORK/boot.log 2>&1 &
nspawn=$!
leader=
stop() {
  # Orderly, so that nspawn removes its own mounts and control groups.
  [ -z "$leader" ] || inside systemctl --no-block poweroff 2>/dev/null || true
  local end=$((SECONDS + SECONDS_TO_WAIT))
  while kill -0 $nspawn 2>/dev/null && [ $SECONDS -lt $end ]; do sleep 0.2; done
  kill -KILL $nspawn 2>/dev/null || true
}
trap stop EXIT

inside() { nsenter --target "$leader" --all -- env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"; }
# With a program of this machine, on the network of the container.
beside() { nsenter --target "$leader" --net -- "$@"; }
# until WHAT COMMAND...: waits for the command to succeed.
until_so() {
  local what=$1 end=$((SECONDS + SECONDS_TO_WAIT))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || die "$what: not within $SECONDS_TO_WAIT s; $(inside journalctl --no-pager --lines 30 2>&1 || tail $WORK/boot.log)"
    kill -0 $nspawn 2>/dev/null || die "the container ended; see $WORK/boot.log"
    sleep 0.2
  done
}
# must WHAT COMMAND...: one claim, checked.
must() {
  local what=$1
  shift
  if "$@" >$WORK/last.log 2>&1; then say "$what"; else
    inside journalctl --no-pager --unit millrace --lines 30 2>/dev/null || true
    die "FAILED: $what: $*; $(tail -n 5 $WORK/last.log)"
  fi
}
not() { ! "$@"; }

has_booted() {
  leader=$(pgrep --parent $nspawn | head -n 1) && [ -n "$leader" ] && [[ $(inside systemctl is-system-running) =~ running|degraded ]]
}
until_so "the container's systemd" has_booted

install() { inside apt-get install -qq -y --no-install-recommends "$@"; }
active() { [ "$(inside systemctl is-active millrace)" = "$1" ]; }
pid() { inside systemctl show --property MainPID --value millrace; }
user_of() { inside stat -c %U "/proc/$(pid)"; }
lists_film() { [[ $(beside curl -sf http://127.0.0.1:8080/api/v1/titles) == *'"name":"film"'* ]]; }
pictures() {
  beside ffmpeg -v error -nostdin -rtsp_transport "$1" -timeout 10000000 -i rtsp://127.0.0.1:8554/film -map 0:v \
    -fps_mode passthrough -f framemd5 - | grep -vc '^#'
}
plays() {
  beside curl -sf http://127.0.0.1:8080/titles/film.ts | cmp - "$WORK/packages/film.ts" || return
  for transport in udp tcp; do
    came=$(pictures "$transport") || true
    # At the end of RTP, FFmpeg drops a picture that no other follows.
    [ "$came" -ge $((PICTURES - 1)) ] || { echo "$came of $PICTURES pictures by $transport"; return 1; }
  done
}
takes_port_554() {
  local dropin=/etc/systemd/system/millrace.service.d/override.conf
  inside sh -c "mkdir -p ${dropin%/*}; printf '[Service]\n%s\n' CapabilityBoundingSet=CAP_NET_BIND_SERVICE AmbientCapabilities=CAP_NET_BIND_SERVICE >$dropin" &&
    inside systemctl daemon-reload && inside systemctl restart millrace && beside curl -sf --max-time 5 rtsp://127.0.0.1/ &&
    inside rm -r "${dropin%/*}" && inside systemctl daemon-reload && inside systemctl restart millrace
}
# The container has no ffmpeg that could have made the film. The whole would take a minute: files come at their own rate.
DEMO_BYTES=1000000
demo_film() { beside curl -sf --max-time $SECONDS_TO_WAIT --range 0-$((DEMO_BYTES - 1)) http://127.0.0.1:8180/titles/test-picture.ts; }
shows_demo() {
  not inside sh -c 'command -v ffmpeg' || { echo "the container has ffmpeg"; return 1; }
  inside timeout --signal=INT $SECONDS_TO_WAIT runuser -u nobody -- millrace demo --no-open --listen 127.0.0.1:8654 --http 127.0.0.1:8180 >$WORK/demo.log 2>&1 &
  local demo=$!
  until_so "demo: its film becomes a title" demo_film
  demo_film | cmp - <(inside head -c $DEMO_BYTES /usr/share/millrace/demo/test-picture.ts) || return
  # Small systems have no pkill.
  inside sh -c 'for process in /proc/[0-9]*; do [ "$(cat $process/comm)" != millrace ] || kill -INT ${process#/proc/}; done' || return
  wait $demo && grep -q '^demo: open http://127.0.0.1:8180/' $WORK/demo.log && not inside sh -c 'ls -d /tmp/millrace-demo-*'
}
takes_over_setting() {
  local before
  before=$(pid)
  inside sh -c 'echo "max-rate = \"5Gb/s\"" >>/etc/millrace.toml' && inside systemctl reload millrace &&
    until_so "reload" inside sh -c 'journalctl --unit millrace | grep -q "max-rate: 5Gb/s from now on"' && [ "$before" = "$(pid)" ]
}
starts_and_plays() {
  must "$1: the unit starts and reports that it is ready" inside timeout $SECONDS_TO_WAIT systemctl start millrace
  until_so "$1: the film becomes a title" lists_film
  must "$1: the film is the same by HTTP, and all its pictures come by RTSP over UDP and TCP" plays
}

must "install" install /packages/millrace{,-lab}_"${VERSION}"_amd64.deb
must "install: the service is neither started" active inactive
must "install: nor enabled" not inside systemctl is-enabled --quiet millrace
must "install: the settings are valid" inside millrace config check /etc/millrace.toml
must "install: millrace finds millrace-lab" inside millrace bench list
must "install: the demo shows its film to a user without rights, and leaves nothing" shows_demo
inside cp /packages/film.ts /var/lib/millrace/films/
must "service: is enabled" inside systemctl enable millrace
starts_and_plays "service"
must "service: runs as user millrace" test "$(user_of)" = millrace
must "service: has no capability" inside grep -q '^CapEff:\s*0*$' "/proc/$(pid)/status"
must "service: takes over a setting without a restart" takes_over_setting
must "service: takes port 554 with the lines that the guide has for it" takes_port_554

before=$(pid)
inside sh -c 'echo "max-streams = 77" >>/etc/millrace.toml'
must "upgrade" install /packages/millrace{,-lab}_"${NEXT}"_amd64.deb
must "upgrade: the service runs" active active
must "upgrade: with the new program" test "$before" != "$(pid)"
must "upgrade: the changed settings stay" inside grep -qx 'max-streams = 77' /etc/millrace.toml
starts_and_plays "upgrade"

last=$(pid)
must "remove: the service runs before it" inside test -d "/proc/$last"
must "remove" inside apt-get remove -qq -y millrace millrace-lab
must "remove: the service has ended" not inside test -d "/proc/$last"
must "remove: the settings stay" inside test -f /etc/millrace.toml
must "purge" inside apt-get purge -qq -y millrace millrace-lab
left=$(inside find / -xdev -name '*millrace*' -not -path '/proc/*' -not -path '/sys/*' -not -path '/packages/*' -not -path '/var/log/*')
must "purge: nothing stays but films, titles and what apt logs" test "$left" = /var/lib/millrace
must "purge: the film stays" inside cmp /packages/film.ts /var/lib/millrace/films/film.ts

must "install again" install /packages/millrace_"${VERSION}"_amd64.deb
inside rm /var/lib/millrace/films/film.ts
starts_and_plays "install again, without the film's file"
must "purge again" inside apt-get purge -qq -y millrace

# As in docs/guide/install.md.
must "archive: is unpacked" inside sh -ec "tar -C /tmp -xzf /packages/millrace-$VERSION-x86_64-linux.tar.gz
  cd /tmp/millrace-$VERSION-x86_64-linux && cp -r bin lib share /usr/local/ && cp millrace.toml /etc/
  id millrace && systemctl daemon-reload"
starts_and_plays "archive"
must "archive: runs from /usr/local" test "$(inside readlink "/proc/$(pid)/exe")" = /usr/local/bin/millrace
say "all right"
