/* grid.h: kernels by their names, and launches of them. */
#ifndef WEFT_TESTS_EMULATE_GRID_H
#define WEFT_TESTS_EMULATE_GRID_H

#include <cstddef>
#include <vector>

extern int emulated_arch; /* of the machine code: 900 has clusters, 800 has not */

namespace emulate
{

struct kernel {
    const char *name;
    void (*run)(const void *params);
    size_t param_bytes[2]; /* each begins at a multiple of 8 bytes; 0: there is none */
};

struct launch {
    const struct kernel *kernel;
    unsigned blocks, threads, cluster;
    size_t shared_bytes;
    std::vector<char> params;
};

struct grid;

const struct kernel *kernel_named(const char *name); /* NULL: there is none */

struct grid *grid_start(const struct launch &launch);

/* Some blocks, chosen at random, some of them more often than others, have a turn. False: all have
 * ended, and the grid is gone. */
bool grid_continue(struct grid *grid);

void grid_print(const struct grid *grid); /* to stderr, who has not ended */

} // namespace emulate

#endif
