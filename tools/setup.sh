#!/bin/sh
# Installs what building and testing tamis needs on Debian and its relatives. Silent when nothing
# is missing; elsewhere it names what is.
set -eu

missing=""
need_command() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
need_library() {
    { command -v pkg-config >/dev/null 2>&1 && pkg-config --exists "$1"; } || missing="$missing $2"
}

need_command cc build-essential
need_command cmake cmake
need_command ninja ninja-build
need_command pkg-config pkg-config
need_library jansson libjansson-dev
need_library libpcre2-8 libpcre2-dev
need_library libutf8proc libutf8proc-dev
need_library libxxhash libxxhash-dev
need_library libzstd libzstd-dev # optional, but tested
need_library cmocka libcmocka-dev
[ -z "$missing" ] && exit 0

echo "missing:$missing" >&2
if ! command -v apt-get >/dev/null 2>&1; then
    echo "This is not a Debian system: please install what these Debian packages hold:$missing" >&2
    exit 1
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "Please run as root: apt-get install -y$missing" >&2
        exit 1
    fi
    as_root="sudo env DEBIAN_FRONTEND=noninteractive" # sudo drops the environment
fi
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -q || echo "apt-get update failed; trying to install all the same" >&2
# shellcheck disable=SC2086  # a list of package names
$as_root apt-get install -y -q --no-install-recommends $missing
