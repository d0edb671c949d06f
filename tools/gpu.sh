#!/bin/sh
# Builds the GPU communicator for this machine's GPU, tests it and measures it, in one call; needs
# nvcc, gcc and cmocka, no other package. Usage: tools/gpu.sh WHAT...  with WHAT of
#     test       the conformance tests of GPU ranks
#     sanitize   a short run under compute-sanitizer, if it is there
#     bench      fused against unfused; sweep: every path, form and algorithm; parts: where time goes
#     soak       a million epochs with random delays
#     pair       several GPUs, a rank each: fused against NCCL with separate kernels, and what PyTorch
#                takes for the sum alone
#     large      long messages on every path, and what the links can do
# NCCL is PyTorch's, if that is there.
# CMOCKA=DIR: a folder with cmocka.h and libcmocka.so, where the system has none. OUT=DIR: logs.
set -eu
cd "$(dirname "$0")/.."
build=build/gpu
out=${OUT:-$build}
mkdir -p $build "$out"
PATH=$PATH:/usr/local/cuda/bin

arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
[ "$arch" -lt 90 ] || arch=${arch}a
flags='-std=c17 -D_GNU_SOURCE -O2 -g1 -ffp-contract=off -fno-math-errno -Wno-psabi -Iinclude -Isrc'
cmocka=${CMOCKA:+-I$CMOCKA -L$CMOCKA -Wl,-rpath,$CMOCKA}

{
    echo '.section .rodata'
    for source in kernels/*.cu; do
        name=$(basename "$source" .cu)
        echo ".balign 64
${name}_start: .incbin \"$build/$name.fatbin\"
${name}_end:
${name}_name: .asciz \"$name\""
    done
    echo '.section .data.rel.ro, "aw"
.balign 8
.globl weft__cuda_images
weft__cuda_images:'
    for source in kernels/*.cu; do
        name=$(basename "$source" .cu)
        echo ".quad ${name}_name, ${name}_start, ${name}_end"
    done
    echo '.quad 0, 0, 0
.section .note.GNU-stack, "", @progbits'
} >$build/images.S

pids=
for source in kernels/*.cu; do
    nvcc --split-compile=0 -std=c++17 -O3 --fmad=false -ftz=false -prec-div=true -prec-sqrt=true -Iinclude -Isrc \
        -gencode=arch=compute_$arch,code=sm_$arch -fatbin -o $build/"$(basename "$source" .cu)".fatbin "$source" &
    pids="$pids $!"
done
for source in src/base/*.c src/dev/cuda/*.c src/dev/cpu/comm*.c src/comm/*.c; do
    extra=
    case $source in *_avx2.c) extra='-mavx2 -mfma -mf16c' ;; esac
    # shellcheck disable=SC2086
    gcc $flags $extra -c -o $build/"$(echo "$source" | tr / _)".o "$source" &
    pids="$pids $!"
done
for pid in $pids; do wait "$pid"; done
gcc -c -o $build/images.o $build/images.S
for source in tests/conform/comm_cuda_*_test.c tests/bench/comm_cuda_bench.c; do
    # shellcheck disable=SC2086
    gcc $flags -DWEFT_SOURCE_DIR="\"$PWD\"" $cmocka -o $build/"$(basename "$source" .c)" "$source" \
        $build/*.o -lcmocka -lpthread -ldl -lm
done

nvidia-smi --query-gpu=name,driver_version,clocks.sm --format=csv,noheader
rm -f $build/failed
nccl=$(python3 -c 'import nvidia.nccl; print(nvidia.nccl.__path__[0] + "/lib")' 2>/dev/null || true)
export LD_LIBRARY_PATH="$nccl${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
status=0
for what in "$@"; do
    case $what in
    test)
        {
            for source in tests/conform/comm_cuda_*_test.c; do
                timeout 200 $build/"$(basename "$source" .c)" || touch $build/failed
            done
            if [ "$(nvidia-smi -L | wc -l)" -gt 1 ]; then # also with all ranks on one of them
                CUDA_VISIBLE_DEVICES=0 timeout 60 $build/comm_cuda_numbers_test || touch $build/failed
            fi
        } 2>&1 | tee "$out/test.log"
        ;;
    sanitize)
        for tool in memcheck racecheck synccheck; do
            cases=6
            [ $tool != racecheck ] || cases=2
            echo "compute-sanitizer $tool"
            timeout 50 compute-sanitizer --report-api-errors no --tool $tool \
                $build/comm_cuda_numbers_test --short $cases >$build/$tool.log 2>&1 || true
            grep -m 20 '=========' $build/$tool.log || true
            tail -3 $build/$tool.log
        done | tee "$out/sanitize.log"
        ;;
    bench) timeout 300 $build/comm_cuda_bench 2>&1 | tee "$out/bench.log" ;;
    parts) timeout 100 $build/comm_cuda_bench parts 2>&1 | tee "$out/parts.log" ;;
    soak) timeout 300 $build/comm_cuda_order_test --soak 2>&1 | tee "$out/soak.log" ;;
    pair)
        timeout 100 $build/comm_cuda_bench 2>&1 | tee "$out/pair.log"
        timeout 60 $build/comm_cuda_bench sums 2>&1 | tee "$out/sums.log"
        timeout 100 python3 tools/torch-allreduce.py 2>&1 | tee "$out/torch.log"
        ;;
    large) timeout 100 $build/comm_cuda_bench large 2>&1 | tee "$out/large.log" ;;
    sweep) timeout 400 $build/comm_cuda_bench sweep 2>&1 | tee "$out/sweep.log" ;;
    *) echo "unknown: $what"; status=2 ;;
    esac
done
[ ! -e $build/failed ] || status=1
exit $status
