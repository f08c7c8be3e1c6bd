#!/usr/bin/env bash
# fresh.sh - commands of README.md on a fresh Debian: a new folder (debootstrap) with git alone, into which the last
# commit is cloned.  Needs root, and installs debootstrap where it is missing.
#
#   tests/fresh.sh SUITE COMMAND...   SUITE: bookworm (Debian 12) or trixie (13); each command runs in the clone
#
# Exit status: 0, or the first command's that is not; 77 where no such folder can be made, which it says.
# KVL_FRESH_DIR (/var/tmp) is where the folder is made; six gigabytes for a while.  With KVL_FRESH_KEEP=1 it stays.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../harness/setup.sh"

no_folder() { kvl_say "no fresh Debian here: $*"; exit 77; }

# The mirror that this machine uses, if it is a Debian.
mirror_of() {
    local line
    line=$(grep -rhsE '^(deb|URIs:) ' /etc/apt/sources.list /etc/apt/sources.list.d | grep -oE '[a-z+]+://[^ ]*/debian/?( |$)' | head -n 1)
    echo "${line:-http://deb.debian.org/debian}"
}

# make_folder: a minimal Debian in $root
make_folder() {
    local script=/usr/share/debootstrap/scripts
    if ! command -v debootstrap >/dev/null; then
        kvl_say "installing: debootstrap"
        env DEBIAN_FRONTEND=noninteractive sh -c 'apt-get update -qq && apt-get install -y -qq debootstrap' >"$log" 2>&1 ||
            no_folder "no debootstrap, and apt-get could not install it: $(tail -n 1 "$log")"
    fi
    # A debootstrap that is older than the suite has no script of its name; all of them are one.
    script=$script/$([ -e "$script/$suite" ] && echo "$suite" || echo sid)
    debootstrap --variant=minbase --include=git,ca-certificates "$suite" "$root" "$(mirror_of)" "$script" >"$log" 2>&1 ||
        no_folder "debootstrap did not work: $(tail -n 1 "$log")"
    # How this machine gets at its mirrors.
    apt-config dump Acquire | grep -iE 'proxy|check-(valid|date)|::(https?|verify|cainfo)' >"$root/etc/apt/apt.conf.d/99-as-outside" || true
    cp -L /etc/resolv.conf "$root/etc/resolv.conf"
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/" 2>/dev/null || true
    cp -L /etc/pip.conf "$root/etc/" 2>/dev/null || true
    inside 'apt-get update -qq' >"$log" 2>&1 || no_folder "apt-get update in the folder did not work: $(tail -n 1 "$log")"
}

# inside COMMAND: a shell in the folder, with its own /proc, /sys and /dev, which are gone when it ends
inside() {
    local command=$1 settings
    mapfile -t settings < <(env | grep -iE '^((http|https|ftp|no|all)_proxy|pip_(cert|index_url|extra_index_url|trusted_host))=')
    # shellcheck disable=SC2016
    unshare --mount sh -c '
        root=$1
        shift
        mount -t proc proc "$root/proc" && mount --rbind /sys "$root/sys" && mount --rbind /dev "$root/dev" &&
            exec chroot "$root" "$@"' sh "$root" \
        env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM="${TERM:-dumb}" \
        ${settings[@]+"${settings[@]}"} sh -c "$command"
}

case ${1-} in
bookworm | trixie) suite=$1; shift ;;
*) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
[ "$(id -u)" = 0 ] || no_folder "not root"
command -v apt-config >/dev/null || no_folder "no apt"
unshare --mount true 2>/dev/null || no_folder "unshare --mount is not allowed"
place=$(mktemp -d "${KVL_FRESH_DIR:-/var/tmp}/kvlab-fresh.XXXXXX")
root=$place/root
log=$place/log
# What is mounted in it is gone with the process that sees it; nothing else is removed.
[ -n "${KVL_FRESH_KEEP-}" ] || trap 'rm -rf --one-file-system "$place"' EXIT
kvl_say "a fresh Debian ($suite) in $root"
make_folder
git -C "$kvl_root" diff --quiet HEAD -- 2>/dev/null || kvl_say "what is not committed is not tried"
git -c safe.directory='*' clone -q --no-hardlinks "$kvl_root" "$root/root/kvlab" || no_folder "the sources are no clone of git"
inside 'echo "kvlab: $(. /etc/os-release && echo $PRETTY_NAME), $(dpkg-query -f x -W | wc -c) packages"' >&2
for command in "$@"; do
    start=$SECONDS rc=0
    kvl_say "$suite: $command"
    inside "cd /root/kvlab && exec $command" </dev/null || rc=$?
    kvl_say "$suite: $command: exit status $rc after $((SECONDS - start)) s"
    [ $rc = 0 ] || exit $rc
done
