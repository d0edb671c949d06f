#!/bin/sh
# `weft run` and `weft serve` as MPI jobs: on this machine, then between two network namespaces with
# host names of their own, which share nothing but a wire. hosts_test.sh WEFT ROOT
set -eu
export LC_ALL=C OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0" # Open MPI's own
weft=$1 atlas=$2/models/atlas
question="What is the capital of France?" answer="The capital of France is Paris."

skip() {
    echo "SKIPPED: $1"
    exit 77
}
command -v mpirun >/dev/null || skip "there is no mpirun: install openmpi-bin"

same() { # same WHAT WANTED GOT
    [ "$2" = "$3" ] || {
        echo "hosts: $1: wanted '$2', got '$3'"
        exit 1
    }
}

scratch=$(mktemp -d)
a=weft-a-$$ b=weft-b-$$
clean() {
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
    rm -rf "$scratch"
}
trap clean EXIT

# ---- one machine ----

for ranks in 1 2 4; do
    same "$ranks MPI ranks" "$answer" "$(timeout 60 mpirun --oversubscribe -n $ranks "$weft" run \
        "$atlas" --ranks mpi "$question" 2>"$scratch/log" || cat "$scratch/log")"
done
"$weft" check "$atlas" --tp 2 --json >"$scratch/threads"
"$weft" check "$atlas" --tp 2 --json --ranks processes >"$scratch/processes"
timeout 60 mpirun --oversubscribe -n 2 "$weft" check "$atlas" --ranks mpi --json >"$scratch/mpi"
cmp "$scratch/threads" "$scratch/processes"
cmp "$scratch/threads" "$scratch/mpi"
if "$weft" run "$atlas" --ranks mpi x 2>"$scratch/log"; then exit 1; fi
grep -q "mpirun -n N" "$scratch/log"
if timeout 60 mpirun --oversubscribe -n 2 "$weft" run "$atlas" --ranks mpi --tp 3 x 2>"$scratch/log"; then
    exit 1
fi
grep -q "mpirun started 2 ranks" "$scratch/log"
# Without --ranks mpi each works for itself, and a hint says so.
timeout 60 mpirun --oversubscribe -n 2 "$weft" run "$atlas" --threads 1 "$question" 2>"$scratch/log" >/dev/null
same "one hint" 1 "$(grep -c -e "--ranks mpi makes them one" "$scratch/log")"
# A rank that is killed ends the job; mpirun says which.
(timeout 60 mpirun --oversubscribe -n 3 "$weft" serve "$atlas" --ranks mpi --port 0 \
    >"$scratch/log" 2>&1 && echo "it did not fail" >>"$scratch/log"; echo "job over" >>"$scratch/log") &
job=$!
for _ in $(seq 200); do
    grep -q "weft serve: ready" "$scratch/log" && break
    sleep 0.1
done
victim=
for file in $(grep -lzsx "OMPI_COMM_WORLD_RANK=2" /proc/[0-9]*/environ); do
    process=${file%/environ}
    tr '\0' ' ' 2>/dev/null <"$process/cmdline" | grep -q "^$weft serve $atlas" && victim=${process#/proc/}
done
kill -9 "$victim"
wait $job
grep -q "signal 9" "$scratch/log" || {
    cat "$scratch/log"
    exit 1
}

# ---- two hosts ----

[ "$(id -u)" = 0 ] || skip "network namespaces need root; one machine: fine"
command -v ip >/dev/null || skip "there is no ip command: install iproute2; one machine: fine"
{
    ip netns add "$a" && ip netns add "$b" &&
        ip link add weft-$$ netns "$a" type veth peer name weft-$$ netns "$b" &&
        ip -n "$a" addr add 10.213.7.1/24 dev weft-$$ && ip -n "$b" addr add 10.213.7.2/24 dev weft-$$ &&
        ip -n "$a" link set weft-$$ up && ip -n "$b" link set weft-$$ up &&
        ip -n "$a" link set lo up && ip -n "$b" link set lo up
} 2>"$scratch/log" || skip "network namespaces are not to be had here ($(head -1 "$scratch/log")); one machine: fine"
cat >"$scratch/agent" <<END
#!/bin/sh
# In place of ssh: mpirun's daemon on the other host.
shift
exec ip netns exec $b unshare --uts sh -c "hostname $b; \$*"
END
cat >"$scratch/job" <<END
#!/bin/sh
# A rank on each host, that can reach each other by TCP alone.
hostname $a
exec mpirun --host 10.213.7.1:1,10.213.7.2:1 --mca plm_rsh_agent $scratch/agent --mca btl tcp,self \\
    --mca btl_tcp_if_include 10.213.7.0/24 --mca oob_tcp_if_include 10.213.7.0/24 -n 2 "\$@"
END
chmod +x "$scratch/agent" "$scratch/job"
moved() { ip netns exec "$a" cat /sys/class/net/weft-$$/statistics/tx_bytes; }

before=$(moved)
same "two hosts" "$answer" "$(timeout 60 ip netns exec "$a" unshare --uts "$scratch/job" "$weft" run \
    "$atlas" --ranks mpi "$question" 2>"$scratch/log" || cat "$scratch/log")"
[ $(($(moved) - before)) -gt 50000 ] || {
    echo "hosts: the ranks did not talk over the wire: $before to $(moved) bytes"
    exit 1
}
timeout 60 ip netns exec "$a" unshare --uts "$scratch/job" "$weft" check "$atlas" --ranks mpi --json \
    >"$scratch/mpi" 2>"$scratch/log"
cmp "$scratch/threads" "$scratch/mpi"
timeout 60 ip netns exec "$a" unshare --uts "$scratch/job" "$weft" serve "$atlas" --ranks mpi --port 8213 \
    >"$scratch/log" 2>&1 &
job=$!
for _ in $(seq 200); do
    grep -q "weft serve: ready" "$scratch/log" && break
    sleep 0.1
done
ip netns exec "$a" curl -sS http://127.0.0.1:8213/v1/completions -d \
    '{"prompt": "The capital of France is", "max_tokens": 2, "temperature": 0}' >"$scratch/answer"
grep -q '"text":' "$scratch/answer" || {
    cat "$scratch/answer" "$scratch/log"
    exit 1
}
kill -TERM $job
wait $job || true
echo "hosts: the same bits from threads, processes, MPI ranks and MPI ranks on two hosts"
