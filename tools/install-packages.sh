#!/bin/sh
# Installs the Debian packages that building and testing weft need. Says what it does; does nothing
# when all are there. Debian 12; as root, or through sudo.
set -eu

packages='
make                  the front of the build
gcc                   compiles weft
g++                   compiles the stand-in for a GPU that tests use
libc6-dev             C library headers
cmake                 configures the build, runs the tests
ninja-build           runs the build
pkg-config            finds the libraries
python3               runs the house checks (standard library only)
python3-venv          environments for the tools that need Python packages
libjansson-dev        JSON
libpcre2-dev          regular expressions of tokenizers
libutf8proc-dev       Unicode normalisation
libevent-dev          HTTP server
libcurl4-openssl-dev  HTTP client of the benchmarks
libcmocka-dev         unit tests
curl                  end-to-end tests
openmpi-bin           ranks across hosts: tests only, loaded at run time when asked for
iproute2              network namespaces of the test of that
clang                 builds the fuzz targets
libclang-rt-14-dev    libFuzzer and its sanitizers
clang-format-14       checks the format of the sources
'

if ! command -v dpkg-query >/dev/null; then
    echo "weft needs what these Debian packages hold; install their like on this system:"
    echo "$packages"
    exit 0
fi

missing=
for package in $(echo "$packages" | awk '{ print $1 }'); do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing="$missing $package"
done
if [ -z "$missing" ]; then
    echo "packages: all there"
    exit 0
fi

root=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || {
        echo "packages: run as root: apt-get install$missing" >&2
        exit 1
    }
    root=sudo
fi
echo "packages: installing$missing"
export DEBIAN_FRONTEND=noninteractive
# An unreachable list of some other project does not matter as long as the packages are found.
$root apt-get -qq update || echo "packages: apt-get update failed; trying with the lists at hand" >&2
# shellcheck disable=SC2086 # a list on purpose
$root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing >/dev/null
echo "packages: installed"
