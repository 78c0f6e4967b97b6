#!/usr/bin/env bash
# Makes two films of three minutes, serves them, and shows that they can be played.
#
#   scripts/demo.sh [--prove]
#   scripts/demo.sh --films DIR SECONDS
#
# --prove: play ten seconds of each film over UDP and over TCP, say what arrived, and end. Without a screen the same
# proof is made, and serving goes on. Films and store stay in demo/ for the next time.
# --films: only make the films, of that length, in DIR: `cargo xtask interop` plays them with other players.
set -euo pipefail
cd "$(dirname "$0")/.."

SECONDS_OF_FILM=180
RATE=25
PROOF_SECONDS=10
# Preparing both films takes a few seconds; this is for a machine that is busy with something else.
READY_SECONDS=120
MILLRACE=${MILLRACE:-target/release/millrace}
FILMS=demo/films
# Film files and the titles that the server makes of their names.
CBR=test-card-cbr
VBR=test-card-vbr

say() { printf 'demo: %s\n' "$*"; }
die() {
  say "$*" >&2
  exit 1
}

prove_and_end=false films_only=false
case ${1-} in
  --prove) prove_and_end=true ;;
  --films)
    [ $# -eq 3 ] || die "usage: scripts/demo.sh --films DIR SECONDS"
    films_only=true FILMS=$2 SECONDS_OF_FILM=$3
    ;;
  '') ;;
  *) die "unknown option '$1'; usage: scripts/demo.sh [--prove]" ;;
esac
command -v ffmpeg >/dev/null || die "ffmpeg is missing; 'make deps' installs it"
"$films_only" || [ -x "$MILLRACE" ] || die "$MILLRACE is missing; 'make build' makes it"

# --- films -------------------------------------------------------------------------------------------------------

# A moving test picture with running time code; noise that comes and goes every ten seconds makes the bit rate of the
# variable film really vary.
picture() {
  local font=/usr/share/fonts/truetype/dejavu/DejaVuSansMono.ttf
  printf 'testsrc2=s=640x360:r=%s:d=%s' "$RATE" "$SECONDS_OF_FILM"
  printf ",noise=alls=12:allf=t:enable='gt(mod(t,20),10)'"
  if [ -r "$font" ]; then
    printf ",drawtext=fontfile=%s:timecode='00\\:00\\:00\\:00':r=%s" "$font" "$RATE"
    printf ':fontsize=48:fontcolor=white:box=1:boxcolor=black@0.7:x=(w-tw)/2:y=h-th-24'
  fi
}

# A tone of 440 Hz on the left, 660 Hz on the right.
sound() {
  printf 'sine=f=440:r=48000:d=%s[l];sine=f=660:r=48000:d=%s[r];[l][r]amerge=inputs=2' $SECONDS_OF_FILM $SECONDS_OF_FILM
}

# make_film FILE WHAT ENCODER-ARGUMENTS...
make_film() {
  local file=$FILMS/$1 what=$2 part
  shift 2
  [ -e "$file" ] && return
  part=$FILMS/.part.${file##*.}
  say "making $file: $what"
  ffmpeg -v error -nostdin -y -progress pipe:1 -f lavfi -i "$(picture)" -f lavfi -i "$(sound)" \
    -c:v libx264 -pix_fmt yuv420p -g $((2 * RATE)) -keyint_min $((2 * RATE)) -sc_threshold 0 -flags +cgop \
    -c:a aac -b:a 128k -ac 2 "$@" "$part" |
    while IFS='=' read -r key value; do
      if [ "$key" = out_time_us ] && [ -t 1 ] && [ "$value" != N/A ]; then
        printf '\r  %3d %%' $((value / 10000 / SECONDS_OF_FILM))
      fi
    done
  if [ -t 1 ]; then printf '\r        \r'; fi
  mv "$part" "$file"
}

mkdir -p "$FILMS"
make_film $CBR.ts 'constant rate of 2 Mb/s, transport stream' \
  -preset ultrafast -bf 0 -b:v 1600k -minrate 1600k -maxrate 1600k -bufsize 1600k \
  -x264-params nal-hrd=cbr:force-cfr=1 -f mpegts -muxrate 2000k -pcr_period 20 -pat_period 0.1
make_film $VBR.mp4 'variable rate with B-frames, MP4' \
  -preset veryfast -crf 26 -bf 3 -movflags +faststart -f mp4
if "$films_only"; then exit 0; fi

# --- server ------------------------------------------------------------------------------------------------------

listens() { (: </dev/tcp/127.0.0.1/"$1") 2>/dev/null; }

# free_port FIRST LAST: prints the first of the ports FIRST, FIRST + 2, ... below LAST that no
# program listens on.
free_port() {
  local port=$1
  while listens "$port"; do
    port=$((port + 2))
    [ "$port" -lt "$2" ] || die "no free port from $1 to $2; end a program that listens there"
  done
  printf '%s' "$port"
}

if [ -n "${PORT-}" ] && listens "$PORT"; then die "port $PORT is taken; choose another one with PORT=..., or none"; fi
port=${PORT:-$(free_port 8554 8600)}
page_port=$(free_port 8080 8180)

server=
stop_server() {
  [ -n "$server" ] || return 0
  kill -INT "$server" 2>/dev/null || true
  local status=0
  wait "$server" || status=$?
  server=
  [ "$status" = 0 ] || die "the server ended with status $status"
  say "stopped"
}
# Ctrl-C is the way to end the demo, so it is no failure.
trap 'echo; stop_server; exit 0' INT
trap 'stop_server; exit 143' TERM
trap 'stop_server' EXIT

# A process group of its own: Ctrl-C in the terminal reaches this script alone, which then ends the server once. A second
# signal would make the server stop without waiting for its viewers.
set -m
"$MILLRACE" serve "$FILMS" --store demo/store --listen "0.0.0.0:$port" --http "0.0.0.0:$page_port" &
server=$!
set +m

# Prints the titles of the server as JSON, or nothing while it does not answer.
titles() {
  local line
  {
    printf 'GET /api/v1/titles HTTP/1.0\r\n\r\n' >&3
    while IFS= read -r -t 5 line || [ -n "$line" ]; do printf '%s\n' "$line"; done <&3
  } 2>/dev/null 3<>/dev/tcp/127.0.0.1/"$page_port" || true
}

deadline=$((SECONDS + READY_SECONDS))
for title in $CBR $VBR; do
  until [[ $(titles) == *"\"name\":\"$title\""* ]]; do
    kill -0 "$server" 2>/dev/null || { wait "$server" || true; server=; die "the server did not start"; }
    [ $SECONDS -lt $deadline ] || die "'$title' was not ready after $READY_SECONDS s"
    sleep 0.2
  done
done

# --- proof -------------------------------------------------------------------------------------------------------

# prove TITLE TRANSPORT: counts the pictures that ffmpeg decodes; its exit status alone would tell nothing.
prove() {
  local log=demo/proof-$1-$2.log pictures=0
  pictures=$(timeout $((PROOF_SECONDS * 3)) ffmpeg -v warning -nostdin -rtsp_transport "$2" -timeout 5000000 \
    -i "rtsp://127.0.0.1:$port/$1" -t $PROOF_SECONDS -map 0:v:0 -fps_mode passthrough -f framemd5 - 2>"$log" |
    grep -vc '^#') || true
  local wanted=$((PROOF_SECONDS * RATE)) damaged
  damaged=$(grep -ciE 'missed|corrupt|error' "$log") || true
  # A picture more or less at the cut is a matter of rounding.
  if [ "$pictures" -ge $((wanted - 2)) ] && [ "$damaged" = 0 ]; then
    say "proof: $1 over ${2^^}: $pictures pictures decoded of $PROOF_SECONDS s, none lost or damaged"
    rm -f "$log"
  else
    say "proof FAILED: $1 over ${2^^}: $pictures of $wanted pictures, $damaged complaints by ffmpeg, see $log"
    return 1
  fi
}

if "$prove_and_end" || [ -z "${DISPLAY-}${WAYLAND_DISPLAY-}" ]; then
  say "playing $PROOF_SECONDS s of each film over UDP and TCP with ffmpeg"
  players=() failed=0
  for title in $CBR $VBR; do
    for transport in udp tcp; do
      prove $title $transport &
      players+=($!)
    done
  done
  for player in "${players[@]}"; do wait "$player" || failed=1; done
  if "$prove_and_end"; then
    stop_server
    exit $failed
  fi
fi

say "both films are being served until Ctrl-C; watch them in a browser or a player:"
say "  http://localhost:$page_port/"
say "  ffplay rtsp://localhost:$port/$VBR"
status=0
wait "$server" || status=$?
server=
exit $status
