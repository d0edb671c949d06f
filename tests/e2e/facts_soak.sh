#!/bin/sh
# facts_test.sh with every question. facts_soak.sh WEFT ROOT
exec sh "$2/tests/e2e/facts_test.sh" "$1" "$2" 1
