#!/usr/bin/env bash
# Debian's Chromium, for the tests that open the report in a real browser. Does nothing where there is one already.
set -euo pipefail

has_chromium() { command -v chromium >/dev/null 2>&1; }

give_up() {
    printf '%s\n' "$1" 'The tests of the report need a "chromium" on the PATH: on Debian, apt-get install chromium.' >&2
    exit 1
}

has_chromium && exit 0
command -v apt-get >/dev/null 2>&1 || give_up 'There is no chromium here, and no apt-get to install it with.'

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || give_up 'There is no chromium here, and installing it needs root or sudo.'
    # Without a terminal nobody can type a password: fail rather than wait for one.
    as_root=(sudo)
    [ -t 0 ] || as_root=(sudo --non-interactive)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@" \
        >>"$log" 2>&1
}
echo 'Installing chromium with apt-get, once ...' >&2
if ! { apt update && apt install --yes --no-install-recommends chromium; }; then
    cat "$log" >&2
    give_up 'apt-get could not install chromium.'
fi
has_chromium || give_up 'apt-get installed chromium, but there is none on the PATH.'
