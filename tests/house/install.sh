#!/bin/sh
# Installs to a scratch folder, not the prefix of the build, then builds and runs programs outside the
# tree against what is there, shared and static: install.sh ROOT BUILD.
set -eu
root=$1 build=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

DESTDIR=$scratch/root cmake --install "$build" --prefix /elsewhere >"$scratch/log"
prefix=$scratch/root/elsewhere
for pattern in '*/bin/weft' '*/include/weft_base.h' '*/lib*/libweft.so' '*/lib*/libweft.a' \
    '*/lib*/pkgconfig/weft.pc' '*/man1/weft.1'; do
    find "$prefix" -path "$pattern" | grep -q . || {
        echo "install: no $pattern under $prefix" >&2
        exit 1
    }
done

PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name weft.pc)")
export PKG_CONFIG_PATH
cat >"$scratch/version.c" <<'END'
#include <stdio.h>
#include <string.h>
#include <weft_base.h>
int main(void)
{
    puts(weft_version());
    return strcmp(weft_version(), WEFT_VERSION) != 0 || weft_status_name(WEFT_OK) == NULL;
}
END
libdir=$(dirname "$(find "$prefix" -name libweft.a)")
for source in "$scratch/version.c" "$root"/examples/*.c; do
    [ -f "$source" ] || continue
    echo "building and running $(basename "$source")"
    # shellcheck disable=SC2046 # words on purpose
    cc -Wall -Wextra -Werror "$source" -o "$scratch/shared" $(pkg-config --cflags --libs weft) -lm -lpthread
    LD_LIBRARY_PATH=$libdir "$scratch/shared" "$root/models/atlas" "What is the capital of France?"
    # shellcheck disable=SC2046
    cc "$source" -o "$scratch/static" $(pkg-config --cflags weft) "$libdir/libweft.a" \
        $(pkg-config --static --libs-only-l weft | sed 's/-lweft//')
    "$scratch/static" "$root/models/atlas" "What is the capital of France?"
done
