#!/bin/sh
# Is every C and CUDA source formatted? format.sh ROOT. Versions of clang-format differ, so only 14
# (Debian 12) decides; without it the check is skipped.
set -eu
cd "$1"
tool=$(command -v clang-format-14 || command -v clang-format || true)
case $(test -n "$tool" && "$tool" --version) in
*version\ 14.*) ;;
*)
    echo "SKIPPED: no clang-format 14"
    exit 77
    ;;
esac
folders=
for folder in include src kernels tests examples; do
    [ ! -d $folder ] || folders="$folders $folder"
done
# shellcheck disable=SC2086 # a list on purpose
find $folders -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' | sort |
    xargs "$tool" --dry-run -Werror --style=file
