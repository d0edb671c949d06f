#!/bin/sh
# Tests GPU ranks without a GPU: builds the emulated driver (driver.cpp says what it can't show), the
# communicator and its conformance tests, and runs those. Needs gcc, g++, python3 and cmocka.
# Usage: tests/emulate/run.sh [TEST...]  with TEST of
#     numbers    100 operations each of 1 to 4 ranks on two devices; some without clusters, and without peer
#                access
#     order      short chains, graphs, a thousand epochs
#     faults     every fault of a rank ends, and is named
#     plan       what is measured at open, but for its time
# All of them, about 3 minutes, when none is named. EMULATE_REPORT=4 says every 4 s what has not ended.
set -eu
cd "$(dirname "$0")/../.."
build=build/emulate
if [ "$(uname -m)" != x86_64 ] || ! command -v g++ >/dev/null; then
    echo "SKIPPED: the emulator needs g++ on x86-64"
    exit 77
fi
mkdir -p $build
rm -f $build/*.o

python3 tests/emulate/rewrite.py kernels $build
common='-O2 -g1 -Iinclude -Isrc -ffp-contract=off -fno-math-errno'
# g++ can't see that what a kernel leaves unset is not used.
cpp="-std=c++17 $common -fno-strict-aliasing -fPIC -Wall -Wextra -Wno-unknown-pragmas -Wno-maybe-uninitialized"
# shellcheck disable=SC2086 # lists of words, here and below
g++ $cpp -I$build -Itests/emulate -shared -o $build/libcuda.so.1 tests/emulate/*.cpp -lpthread -Wl,-z,nodelete

# The driver has the kernels: one image stands for all.
cat >$build/images.c <<'END'
const struct {
    const char *name;
    const void *start, *end;
} weft__cuda_images[] = {{"emulated", "", ""}, {0}};
END
c="-std=c17 -D_GNU_SOURCE $common -Wno-psabi"
for source in src/base/*.c src/dev/cuda/*.c src/dev/cpu/comm*.c src/comm/*.c $build/images.c; do
    extra=
    case $source in *_avx2.c) extra='-mavx2 -mfma -mf16c' ;; esac
    # shellcheck disable=SC2086
    gcc $c $extra -c -o $build/"$(echo "$source" | tr / _)".o "$source"
done

[ $# -gt 0 ] || set -- numbers order faults plan
export LD_LIBRARY_PATH="$PWD/$build" EMULATE_DEVICES=2
for what in "$@"; do
    # shellcheck disable=SC2086
    gcc $c -DWEFT_SOURCE_DIR="\"$PWD\"" -o $build/"$what" tests/conform/comm_cuda_"$what"_test.c $build/*.o \
        -lcmocka -lpthread -ldl -lm
    case $what in
    numbers)
        timeout 600 $build/numbers --short 100 4
        EMULATE_ARCH=800 timeout 600 $build/numbers --short 30 2
        EMULATE_PEERS=0 timeout 600 $build/numbers --short 30 3
        ;;
    order | plan) timeout 600 $build/"$what" --short ;;
    *)
        timeout 600 $build/"$what"
        EMULATE_PEERS=0 timeout 600 $build/"$what"
        ;;
    esac
done
