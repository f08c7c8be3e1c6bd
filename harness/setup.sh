# setup.sh - what the scripts that set up and build share: packages, configure, build.  Sourced.
#
# kvl_setup          installs the Debian packages that are missing (sudo where needed)
# kvl_setup_more     as root, those that tests of schedulers want; without them these skip
# kvl_build DIR ...  configures DIR with the cmake arguments that follow and builds it
# kvl_program        both, for build/kvlab without tests
# kvl_find_kvlab     sets kvlab to the program KVLAB, or builds build/kvlab

kvl_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

kvl_say() { printf '%s\n' "kvlab: $*" >&2; }
kvl_die() { kvl_say "$*"; exit 4; }

# command or header that shows that a package is there : package
kvl_needs="
cc:gcc
cmake:cmake
ninja:ninja-build
pkg-config:pkg-config
zstd:zstd
jq:jq
gnuplot:gnuplot-nox
libzstd:libzstd-dev
libxxhash:libxxhash-dev
zlib:zlib1g-dev
jansson:libjansson-dev
yaml-0.1:libyaml-dev
libpcre2-8:libpcre2-dev
libutf8proc:libutf8proc-dev
openblas:libopenblas-dev
cmocka:libcmocka-dev
"
# The tests want these, too: kernels of ops/cuda run on the CPU, compiled as C++, Makefiles are tried, and kernels for
# AVX-512 run on processors without it.
kvl_needs_tests="
g++:g++
make:make
simde/x86/avx512.h:libsimde-dev
"

# Tests that want these skip, and say so, where they are missing.  Who may install packages without asking gets them.
kvl_more_tests="
munged:munge
slurmctld:slurmctld
slurmd:slurmd
sbatch:slurm-client
parallel:parallel
snakemake:snakemake
"

kvl_has() {
    case $2 in
    libsimde-dev) echo "#include <$1>" | cc -E -x c -o /dev/null - 2>/dev/null ;;
    *-dev) command -v pkg-config >/dev/null && pkg-config --exists "$1" ;;
    gcc) command -v gcc >/dev/null && echo 'int main(void){return 0;}' | gcc -x c -fopenmp -o /dev/null - 2>/dev/null ;;
    python3-pip) python3 -c 'import pip' 2>/dev/null ;;
    *) command -v "$1" >/dev/null ;;
    esac
}

kvl_missing() { # of kvl_needs, or of the rows that are given
    local row
    for row in ${1:-$kvl_needs}; do
        kvl_has "${row%%:*}" "${row##*:}" || printf ' %s' "${row##*:}"
    done
}

kvl_setup() {
    local missing sudo=
    missing=$(kvl_missing)
    if [ -n "$missing" ]; then
        command -v apt-get >/dev/null ||
            kvl_die "needs packages that apt-get would install, and there is no apt-get:$missing"
        if [ "$(id -u)" != 0 ]; then
            command -v sudo >/dev/null || kvl_die "run as root, or install:$missing"
            sudo=sudo
        fi
        kvl_say "installing:$missing"
        # libc6-dev and fonts come along where a minimal system lacks them.
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get update -qq || kvl_die "apt-get update did not work"
        # shellcheck disable=SC2086
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            libc6-dev fonts-dejavu-core $missing >/dev/null || kvl_die "apt-get could not install:$missing"
        missing=$(kvl_missing)
        [ -z "$missing" ] || kvl_die "still missing after the installation:$missing"
    fi
}

# What there is of kvl_more_tests, as root after an installation, is of kvl_needs from here on.
kvl_setup_more() {
    local missing row
    missing=$(kvl_missing "$kvl_more_tests")
    if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        kvl_say "installing for tests of schedulers:$missing"
        # shellcheck disable=SC2086
        env DEBIAN_FRONTEND=noninteractive sh -c 'apt-get update -qq && exec apt-get install -y -qq --no-install-recommends "$@"' sh \
            $missing >/dev/null 2>&1 || kvl_say "apt-get could not install them: their tests are skipped"
    fi
    for row in $kvl_more_tests; do
        ! kvl_has "${row%%:*}" "${row##*:}" || kvl_needs+=" $row"
    done
}

kvl_build() {
    local dir=$1
    shift
    mkdir -p "$dir"
    cmake -S "$kvl_root" -B "$dir" -G Ninja "$@" >"$dir/configure.log" 2>&1 ||
        { cat "$dir/configure.log" >&2; kvl_die "cmake could not configure $dir"; }
    ninja -C "$dir" >"$dir/build.log" 2>&1 || { tail -n 40 "$dir/build.log" >&2; kvl_die "the build of $dir did not work"; }
}

kvl_program() {
    local options=(-DCMAKE_BUILD_TYPE=Release -DKVL_TESTS=OFF)
    kvl_setup
    kvl_say "building"
    [ -e "$kvl_root/build/CMakeCache.txt" ] || options+=(-DKVL_CUDA=OFF) # kernels take minutes; who built them keeps them
    kvl_build "$kvl_root/build" "${options[@]}"
}

kvl_find_kvlab() {
    kvlab=${KVLAB:-$kvl_root/build/kvlab}
    if [ -z "${KVLAB-}" ]; then
        kvl_program
    elif ! command -v "$kvlab" >/dev/null; then
        kvl_say "KVLAB=$kvlab: no such program"
        exit 2
    fi
}

# kvl_run_parts SWEEP: runs SWEEP with the fields of each row of $parts ("name|field|..."), of those in names alone where
# there are any.  Logs go to $out; texts and snapshots lie in $held.
kvl_run_parts() {
    local sweep=$1 row name fields
    mkdir -p "$out" "$held/snapshots"
    [ -e "$held/prose.txt" ] || cp "$(harness/prose.sh --path austen)" "$held/prose.txt"
    [ ${#names[@]} -gt 0 ] || mapfile -t names < <(grep . <<<"$parts" | cut -d '|' -f 1)
    for name in "${names[@]}"; do
        row=$(grep "^$name|" <<<"$parts") ||
            { kvl_say "$name: no such part, want one of $(grep . <<<"$parts" | cut -d '|' -f 1 | xargs)"; exit 2; }
        IFS='|' read -r -a fields <<<"$row"
        "$sweep" "${fields[@]}"
    done
}
