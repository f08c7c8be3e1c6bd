#!/usr/bin/env bash
# test_build_info.sh - the name of a build tells two sets of sources apart: results of an edited
# method were taken for those of the method before.
#   $1 the program   $2 the sources
set -euo pipefail
source_dir=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

if ! command -v cmake >/dev/null || ! command -v git >/dev/null; then
    echo "test_build_info: skipped, no cmake or no git"
    exit 77
fi

fail() {
    echo "test_build_info: $*" >&2
    exit 1
}

# name: what the build is called
name() {
    cmake -DOUT="$work/out.h" -DSRC="$work/src" -P "$source_dir/harness/build_info.cmake"
    sed -nE 's/#define KVL_BUILD_GIT "(.*)"/\1/p' out.h
}

# is PATTERN: the name fits it and is none of those before
is() {
    local got
    got=$(name)
    grep -Eqx -- "$1" <<<"$got" || fail "\"$got\", want $1"
    ! grep -qx -- "$got" seen || fail "\"$got\" was the name of other sources"
    echo "$got" >>seen
}

git() {
    command git -C src -c user.name=t -c user.email=t@t -c commit.gpgsign=false "$@"
}

mkdir -p src/methods src/core/base
: >seen
export GIT_CEILING_DIRECTORIES=$work
echo 'int quest;' >src/methods/quest.c
is 'unknown-[0-9a-f]{8}'
echo 'int quest = 1;' >src/methods/quest.c
is 'unknown-[0-9a-f]{8}'
command git init -q src
git add methods
git commit -qm one
is '[0-9a-f]{12}'
echo 'int quest = 2;' >src/methods/quest.c
is '[0-9a-f]{12}-dirty-[0-9a-f]{8}'
echo 'int quest = 3;' >src/methods/quest.c
is '[0-9a-f]{12}-dirty-[0-9a-f]{8}'
echo 'int more;' >src/core/base/more.c
is '[0-9a-f]{12}-dirty-[0-9a-f]{8}'
echo 'int more = 1;' >src/core/base/more.c
is '[0-9a-f]{12}-dirty-[0-9a-f]{8}'
# What is no source changes no result.
echo text >src/methods/README.md
[ "$(name)" = "$(tail -n 1 seen)" ] || fail "a text is taken for a source"
