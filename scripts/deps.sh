#!/usr/bin/env bash
# Installs the Debian packages that Millrace's chores need, and says which and why. Quick when all are there.
#
#   scripts/deps.sh [--try] GROUP...     groups: build dist dist-check oci demo test peers arm
#
# --try: if packages cannot be installed, say so and go on (tests then say what they skip).
set -euo pipefail

# group, package, why
PACKAGES="
build  gcc                        compiles the SQLite that the catalogue brings along
build  libc6-dev                  headers for it
build  nodejs                     runs npm
build  npm                        fetches hls.js, with which the page plays where browsers have no HLS
build  binutils                   objcopy: puts the symbols of the program into a file of their own
dist   dpkg                       dpkg-deb: packs the packages
dist   binutils                   objdump: the oldest C library that the programs run with
dist-check lintian                checks the packages
dist-check debootstrap            makes the system in which they are installed for a check
dist-check systemd-container      systemd-nspawn: starts it
dist-check ffmpeg                 makes a test film and plays it from there
dist-check curl                   fetches the film from there
dist-check python3                reads the configuration of the container image
oci    debootstrap                gets the Debian packages in the container image
oci    umoci                      makes the image, without a daemon
demo   ffmpeg                     makes the test films, remuxes films that are no transport stream, proves playback
demo   fonts-dejavu-core          draws the running time code into the test films
test   ffmpeg                     makes the test films and plays them back, frame by frame
test   gstreamer1.0-tools         gst-launch-1.0: a second player
test   gstreamer1.0-plugins-base  playbin and conversions for it
test   gstreamer1.0-plugins-good  its RTSP and RTP
test   gstreamer1.0-plugins-bad   its transport stream demultiplexer, H.264 parser and frame checksums
test   gstreamer1.0-libav         its H.264 and AAC decoders
test   python3                    drives GStreamer through pause and seek
test   python3-gi                 GStreamer for Python
test   gir1.2-gstreamer-1.0       the description of GStreamer that python3-gi reads
test   iproute2                   network namespaces: a network of our own without touching the machine's
test   ethtool                    switches checksum offload off there, so that checksums are really checked
test   bindfs                     a disk that hangs: a mount whose program is stopped
test   btrfs-progs                a full disk that copies on write
test   e2fsprogs                  full disks, with small blocks and with usual ones
test   xfsprogs                   a full disk by XFS
test   iptables                   a firewall there that drops UDP, so that players have to ask for TCP
test   libisal2                   another implementation of the parity code, to compare ours with
test   curl                       a program that is preloaded: a client with poll
test   nginx-light                another: a server with epoll and sendfile; its service is kept from starting
test   iperf3                     another: select, in both directions
test   chromium                   the page in a browser, with clicks and keys
test   firefox-esr                the same in another
test   nodejs                     drives them
test   npm                        fetches playwright-core for that
test   vlc-bin                    cvlc: a third player
test   tstools                    tsinfo, tsreport: what another analyser sees in a transport stream
test   vlc-plugin-base            its RTSP, demultiplexers and output to files
peers  ffmpeg                     makes the films; a process a stream is a contender too
peers  iproute2                   network namespaces
peers  ethtool                    switches segmentation offload off there
peers  nginx-light                films and HLS over HTTP; its service is kept from starting
peers  multicat                   a process a stream, paced by a clock file
peers  python3                    launches GStreamer's RTSP server
peers  python3-gi                 GStreamer for Python
peers  gir1.2-gst-rtsp-server-1.0 GStreamer's RTSP server
peers  gstreamer1.0-plugins-good  its RTP
peers  gstreamer1.0-plugins-bad   its transport stream parser
peers  vlc-bin                    cvlc as a server
peers  vlc-plugin-base            its RTP output
arm    qemu-user                  runs programs for arm64
arm    gcc-aarch64-linux-gnu      links them
arm    libc6-dev-arm64-cross      the C library that they need
"

try=false
groups=()
for argument; do
  case $argument in
    --try) try=true ;;
    build | dist | dist-check | oci | demo | test | peers | arm) groups+=("$argument") ;;
    *)
      echo "deps: unknown group '$argument'; groups: build dist dist-check oci demo test peers arm" >&2
      exit 2
      ;;
  esac
done

# Packages of the wanted groups, each once, with the first reason given.
wanted=$(awk -v groups=" ${groups[*]} " '
  NF > 2 && index(groups, " " $1 " ") && !seen[$2]++ { $1 = ""; print substr($0, 2) }' <<<"$PACKAGES")
[ -n "$wanted" ] || exit 0
names=$(cut -d' ' -f1 <<<"$wanted")

give_up() {
  echo "deps: $1" >&2
  "$try" && exit 0
  exit 1
}

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  give_up "this is no Debian system; please install by your own means:
$(sed 's/^/  /' <<<"$wanted")"
fi

# dpkg-query fails if it does not know a package at all; what it prints is right nevertheless.
# shellcheck disable=SC2086
installed=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' $names 2>/dev/null | awk '$1 == "ii" { print $2 }') || true
missing=$(grep -vxF -e "$installed" <<<"$names" || true)
# A program that came from elsewhere does as well, and Debian's package may not fit beside it.
missing=$(while read -r name; do [ -z "$name" ] || command -v "$name" >/dev/null || echo "$name"; done <<<"$missing")
[ -n "$missing" ] || exit 0

echo "deps: missing packages:"
while read -r name why; do
  if grep -qxF -- "$name" <<<"$missing"; then printf '  %-26s %s\n' "$name" "$why"; fi
done <<<"$wanted"

root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || give_up "not root and no sudo; as root: apt-get install $(tr '\n' ' ' <<<"$missing")"
  root=(sudo)
  echo "deps: installing them with sudo apt-get"
fi

# Installing a server must not start it: where this file says no, Debian's packages keep their services from starting.
if grep -q '^nginx' <<<"$missing" && ! [ -e /usr/sbin/policy-rc.d ]; then
  printf '#!/bin/sh\nexit 101\n' | "${root[@]}" tee /usr/sbin/policy-rc.d >/dev/null
  "${root[@]}" chmod +x /usr/sbin/policy-rc.d
  # shellcheck disable=SC2064
  trap "${root[*]} rm -f /usr/sbin/policy-rc.d" EXIT
fi

apt() { "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q "$@"; }
# A fresh container has no package lists; old lists may name versions that are gone.
if ! compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null; then apt update; fi
# shellcheck disable=SC2086
if ! apt install -y --no-install-recommends $missing; then
  # shellcheck disable=SC2086
  { apt update && apt install -y --no-install-recommends $missing; } || give_up "apt-get could not install them"
fi
