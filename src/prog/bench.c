/* weft bench: the table of its parts. */
#include <stdio.h>
#include <string.h>

#include "bench.h"

int weft__cmd_bench(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "diagnose") == 0)
        return weft__bench_diagnose(argc - 1, argv + 1);
    return weft__usage("bench diagnose", "diagnose FILE is wanted");
}
