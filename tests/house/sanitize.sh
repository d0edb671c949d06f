#!/bin/sh
# Builds with a sanitizer preset and runs the tests there: sanitize.sh PRESET [soak]. asan runs all but
# the load generator's, whose stubs keep time, and those that take longer than what they show, with other
# programs (mpirun, Python clients, Chromium) or arithmetic: these in soak. tsan runs those where threads meet:
# collectives, teams, the engine answering many prompts at once, and in soak the server under load.
set -eu
preset=$1 mode=${2:-}
cd "$(dirname "$0")/../.."
jobs=$(nproc)

export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
case $preset$mode in
asan) set -- -E '^e2e_(bench_load|bench_where|hosts|perplexity|serve_clients|serve_console)$' ;;
asansoak) set -- -C Soak -R '^soak_(comm|e2e_s)|^e2e_(hosts|perplexity|serve_clients|serve_console)$' ;;
tsan) set -- -R '^(comm|example)_|^dev_team$|^e2e_facts$' ;;
tsansoak) set -- -C Soak -R '^soak_(comm_|e2e_serve_load$)' ;;
esac

cmake --preset "$preset" --log-level=WARNING
cmake --build "build/$preset" -j "$jobs"
ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$jobs" "$@"
