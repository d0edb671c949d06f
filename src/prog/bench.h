/* bench.h: what the files of `weft bench` share. */
#ifndef WEFT_SRC_PROG_BENCH_H
#define WEFT_SRC_PROG_BENCH_H

#include "prog.h"

int weft__bench_diagnose(int argc, char **argv);

#endif
