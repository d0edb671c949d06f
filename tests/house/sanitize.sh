#!/bin/sh
# Builds with a sanitizer preset and runs the tests there: sanitize.sh PRESET [soak]. asan runs all but
# the load generator's, whose stubs keep time; tsan those where threads meet: collectives, teams, the
# engine answering many prompts at once, and in soak the server under load.
set -eu
preset=$1 mode=${2:-}
cd "$(dirname "$0")/../.."
jobs=$(nproc)

export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
set --
[ "$preset" != asan ] || set -- -E '^e2e_bench_(load|where)$'
[ "$preset" != tsan ] || set -- -R '^(soak_)?(base|comm|dev_team|example)_|^dev_team$|^e2e_facts$|^soak_e2e_serve_load$'
[ "$mode" != soak ] || set -- "$@" -C Soak -L soak

cmake --preset "$preset" --log-level=WARNING
cmake --build "build/$preset" -j "$jobs"
ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$jobs" "$@"
