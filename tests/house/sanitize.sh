#!/bin/sh
# Builds with a sanitizer preset and runs the tests there: sanitize.sh PRESET [soak]. asan runs all of
# them, tsan those of modules that have threads, and the program's own where several threads meet.
set -eu
preset=$1 mode=${2:-}
cd "$(dirname "$0")/../.."
jobs=$(nproc)

export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
set --
[ "$preset" != tsan ] || set -- -R '^(soak_)?(base|dev|comm|model|engine|sched|http|example)_|^e2e_(run|facts|serve_api)$'
[ "$mode" != soak ] || set -- "$@" -C Soak -L soak

cmake --preset "$preset" --log-level=WARNING
cmake --build "build/$preset" -j "$jobs"
ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$jobs" "$@"
