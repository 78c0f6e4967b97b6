#!/usr/bin/env bash
# Brings what comes from the npm registry, as the lock files have it, into target/npm; nothing of it is committed. Quick when all is there.
#
#   scripts/npm.sh [--try] NAME...
#
#   page      hls.js, which the build puts into the program: browsers play HLS with it (crates/web/page)
#   browser   playwright-core, which drives Chromium and Firefox in `cargo xtask interop --only browser`, and axe-core, which looks at the page there
#             (scripts/interop/browser)
#
# --try: if it cannot be had, say what will be missing and go on.
set -euo pipefail
cd "$(dirname "$0")/.."

FOLDER=target/npm
# For one package: a registry that does not answer must not hold up a build for long.
SECONDS_AT_MOST=180

try=false
names=()
for argument; do
  case $argument in
    --try) try=true ;;
    page | browser) names+=("$argument") ;;
    *)
      echo "npm: unknown name '$argument'; names: page browser" >&2
      exit 2
      ;;
  esac
done

# give_up NAME WHY
give_up() {
  case $1 in
    page) echo "npm: $2; without hls.js the page plays only in browsers that have HLS themselves" >&2 ;;
    browser) echo "npm: $2; the checks with browsers will be skipped" >&2 ;;
  esac
  "$try" || exit 1
}

# install NAME LOCKS: what the lock file in LOCKS lists, into $FOLDER/NAME. npm checks it against the sums there.
install() {
  local name=$1 locks=$2 place=$FOLDER/$1
  cmp -s "$locks/package-lock.json" "$place/installed" && return
  command -v npm >/dev/null || { give_up "$name" "there is no npm"; return 1; }
  rm -rf "$place"
  mkdir -p "$place"
  cp "$locks/package.json" "$locks/package-lock.json" "$place/"
  # "added 1 package" is no news for whoever builds; errors go to standard error.
  if ! timeout "$SECONDS_AT_MOST" npm ci --prefix "$place" --ignore-scripts --no-audit --no-fund --loglevel=error --fetch-retries=1 >/dev/null; then
    give_up "$name" "npm ci failed"
    return 1
  fi
  cp "$locks/package-lock.json" "$place/installed"
}

# The script with its licence in front, compressed: as it goes to browsers. Looked for by crates/web/build.rs.
pack_hls() {
  local from=$FOLDER/page/node_modules/hls.js packed=$FOLDER/hls.js.gz
  { printf '/*! hls.js, https:%s\n\n' //github.com/video-dev/hls.js; cat "$from/LICENSE"; printf '*/\n'; cat "$from/dist/hls.min.js"; } |
    grep -v '^//# sourceMappingURL=' | gzip -9n >"$packed.part"
  # An unchanged file keeps its time, so that nothing is built again.
  if cmp -s "$packed.part" "$packed"; then rm "$packed.part"; else mv "$packed.part" "$packed"; fi
}

for name in "${names[@]}"; do
  case $name in
    page) if install page crates/web/page; then pack_hls; fi ;;
    browser) install browser scripts/interop/browser || true ;;
  esac
done
