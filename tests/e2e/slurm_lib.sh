# slurm_lib.sh - a Slurm of four nodes with a core each on this machine: Debian's munged, slurmctld and slurmd, without
# systemd, accounting or control groups.  Sourced.
#
#   slurm_missing       names the program that is missing, or nothing
#   slurm_start DIR     as root; waits until four nodes n0..n3 are idle.  Exports SLURM_CONF
#   slurm_stop          ends what it started, and the jobs
slurm_pids=()
slurm_dir=

slurm_missing() {
    local program
    [ "$(id -u)" = 0 ] || echo "root"
    for program in munged slurmctld slurmd sbatch scontrol squeue sinfo; do
        command -v $program >/dev/null || { echo $program; return; }
    done
}

# Five ports that nobody listens at: slurmctld's and four of slurmd.
slurm_ports() {
    local base i
    for ((i = 0; i < 100; i++)); do
        base=$((20000 + (RANDOM * 32768 + RANDOM) % 10000))
        awk -v base=$base 'FNR > 1 { split($2, a, ":"); p = strtonum("0x" a[2]); if (p >= base && p < base + 5) exit 1 }' \
            /proc/net/tcp 2>/dev/null && { echo $base; return; }
        # An awk without strtonum looks at nothing.
        awk 'BEGIN { strtonum("1") }' 2>/dev/null || { echo $base; return; }
    done
}

# Every path must be absolute: with a relative one slurmd waits a minute for a file that is not there.
slurm_config() {
    local host base=$1
    host=$(uname -n)
    host=${host%%.*}
    cat <<END
ClusterName=kvlab
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$base
AuthType=auth/munge
AuthInfo=socket=$slurm_dir/munge.sock
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$slurm_dir/state
SlurmdSpoolDir=$slurm_dir/spool_%n
SlurmctldPidFile=$slurm_dir/slurmctld.pid
SlurmdPidFile=$slurm_dir/slurmd_%n.pid
SlurmctldLogFile=$slurm_dir/slurmctld.log
SlurmdLogFile=$slurm_dir/slurmd_%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
KillWait=5
SchedulerParameters=sched_interval=1,batch_sched_delay=1
SlurmdParameters=config_overrides
NodeName=n[0-3] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((base + 1))-$((base + 4))] CPUs=1 RealMemory=500 State=UNKNOWN
PartitionName=all Nodes=n[0-3] Default=YES MaxTime=INFINITE State=UP
END
}

# slurm_run PROGRAM...: in the background; it ends with slurm_stop
slurm_run() {
    "$@" >>"$slurm_dir/out" 2>&1 &
    slurm_pids+=($!)
}

slurm_start() {
    local i
    slurm_dir=$(realpath "$1")
    mkdir -p "$slurm_dir/state" "$slurm_dir"/spool_n{0,1,2,3}
    head -c 1024 /dev/urandom >"$slurm_dir/key"
    chmod 400 "$slurm_dir/key"
    slurm_run munged --foreground --force --key-file="$slurm_dir/key" --socket="$slurm_dir/munge.sock" \
        --pid-file="$slurm_dir/munged.pid" --log-file="$slurm_dir/munged.log" --seed-file="$slurm_dir/seed"
    slurm_config "$(slurm_ports)" >"$slurm_dir/slurm.conf"
    export SLURM_CONF=$slurm_dir/slurm.conf
    for ((i = 0; i < 100; i++)); do [ ! -S "$slurm_dir/munge.sock" ] || break; sleep 0.1; done
    slurm_run slurmctld -D -f "$SLURM_CONF"
    for i in 0 1 2 3; do slurm_run slurmd -D -f "$SLURM_CONF" -N n$i; done
    for ((i = 0; i < 300; i++)); do
        [ "$(sinfo -h -t idle -o %D 2>/dev/null)" != 4 ] || return 0
        sleep 0.1
    done
    echo "its nodes are not idle after 30 s: $(sinfo 2>&1; tail -n 3 "$slurm_dir"/*.log)"
    return 1
}

slurm_stop() {
    [ -n "$slurm_dir" ] || return 0
    scancel --signal=KILL --full --user=root 2>/dev/null || true
    kill "${slurm_pids[@]}" 2>/dev/null || true
    # What a job left, and steps whose slurmd is gone.
    kill -9 $(slurm_of "") 2>/dev/null || true
    wait "${slurm_pids[@]}" 2>/dev/null || true
}

# slurm_of TEXT [TEXT]: processes of this Slurm with all of it in their environment or command line
slurm_of() {
    local p text
    for p in /proc/[0-9]*; do
        [ "${p#/proc/}" != $$ ] || continue
        # Not grep -q: under pipefail a writer whose reader has gone is a failure.
        text=$({ tr '\0' '\n' <"$p/environ"; tr '\0' ' ' <"$p/cmdline"; } 2>/dev/null) || continue
        [[ $text != *"$slurm_dir"* || $text != *"$1"* || $text != *"${2-}"* ]] || echo "${p#/proc/}"
    done
}
