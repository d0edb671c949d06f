/* kernels.cpp: the kernels of kernels/, and how their grids run: each GPU thread is a fiber, a
 * stack of its own on the one thread of the CPU that calls here. */
#include "grid.h"

#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>

#include "device.h" /* after the system's headers: it defines words that they may use */

/* Two files as rewrite.py leaves them; the others include the same wait.cuh. */
#include "reduce.cu"

#include "copy.cu"
#include "move.cu"
#include "probe.cu"

int emulated_arch = 900;

namespace emulate
{

struct fiber *current;

struct grid {
    struct launch launch;
    std::vector<struct block> blocks;
    std::vector<struct fiber> fibers;
    size_t left;
};

/* ---- the kernels ---- */

struct probe_params {
    uint32_t *out;
    uint32_t count;
};

template <class Params, void (*KERNEL)(Params)> static void run(const void *params)
{
    KERNEL(*(const Params *)params);
}

static void run_probe(const void *params)
{
    const struct probe_params *probe = (const struct probe_params *)params;
    weft__probe(probe->out, probe->count);
}

static const struct kernel kernels[] = {
#define X(type, dtype, hold, wire)                                                    \
    {"weft__reduce_" #type "_" #hold "_" #wire,                                       \
     run<const struct weft__cuda_reduce_args, weft__reduce_##type##_##hold##_##wire>, \
     {sizeof(struct weft__cuda_reduce_args), 0}},
    WEFT__CUDA_REDUCES(X)
#undef X
        {"weft__move",
         run<const struct weft__cuda_move_args, weft__move>,
         {sizeof(struct weft__cuda_move_args), 0}},
    {"weft__step",
     run<const struct weft__cuda_step_args, weft__step>,
     {sizeof(struct weft__cuda_step_args), 0}},
    {"weft__probe", run_probe, {sizeof(uint32_t *), sizeof(uint32_t)}},
};

const struct kernel *kernel_named(const char *name)
{
    for (const struct kernel &kernel : kernels)
        if (strcmp(kernel.name, name) == 0) return &kernel;
    return nullptr;
}

/* ---- stacks ---- */

enum { STACK_BYTES = 24576, STACKS_AT_ONCE = 256 };
static const uint64_t untouched = 0x5eed5eed5eed5eed;

/* Never destroyed, as the thread that uses it never ends. */
static std::vector<char *> &free_stacks = *new std::vector<char *>;

static char *stack_get()
{
    if (free_stacks.empty()) {
        char *stacks =
            (char *)mmap(nullptr, (size_t)STACK_BYTES * STACKS_AT_ONCE, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stacks == MAP_FAILED) {
            perror("emulate: no memory for stacks");
            abort();
        }
        for (int i = 0; i < STACKS_AT_ONCE; i++)
            free_stacks.push_back(stacks + (size_t)i * STACK_BYTES);
    }
    char *stack = free_stacks.back();
    free_stacks.pop_back();
    *(uint64_t *)stack = untouched;
    return stack;
}

static void stack_put(char *stack)
{
    if (*(uint64_t *)stack != untouched) {
        fprintf(stderr, "emulate: a thread needs more stack than %d bytes\n", STACK_BYTES);
        abort();
    }
    free_stacks.push_back(stack);
}

/* ---- fibers ---- */

/* Leaves the registers that a callee saves on this stack, goes on with those on another. */
extern "C" void emulate_switch(void **from, void *to);
asm(R"(
.globl emulate_switch
.hidden emulate_switch
.type emulate_switch, @function
emulate_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
enum { SAVED_REGISTERS = 6 };

static void *scheduler; /* its stack */
static const struct launch *running;

void yield() { emulate_switch(&current->stack_pointer, scheduler); }

static void fiber_main()
{
    running->kernel->run(running->params.data());
    current->done = true;
    yield();
    abort(); /* nobody goes on with a fiber that is done */
}

static void fiber_init(struct fiber *fiber, struct block *block, unsigned thread)
{
    *fiber = {};
    fiber->block = block;
    fiber->thread = thread;
    fiber->stack = stack_get();
    void **top = (void **)(fiber->stack + STACK_BYTES);
    *--top = nullptr; /* as if called: the stack is 8 bytes off a multiple of 16 */
    *--top = (void *)fiber_main;
    for (int i = 0; i < SAVED_REGISTERS; i++) *--top = nullptr;
    fiber->stack_pointer = top;
}

/* ---- grids ---- */

enum { PACES = 8 };

static unsigned random_below(unsigned bound)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005 + 1442695040888963407;
    return (unsigned)(state >> 33) % bound;
}

struct grid *grid_start(const struct launch &launch)
{
    struct grid *grid = new struct grid;
    size_t shared_bytes = STATIC_SHARED_BYTES + launch.shared_bytes;
    grid->launch = launch;
    grid->blocks.resize(launch.blocks);
    grid->left = (size_t)launch.blocks * launch.threads;
    grid->fibers.resize(grid->left);
    for (unsigned b = 0; b < launch.blocks; b++) {
        struct block *block = &grid->blocks[b];
        *block = {};
        block->index = b;
        block->threads = launch.threads;
        block->blocks = launch.blocks;
        block->cluster = launch.cluster;
        block->pace = 1 + random_below(PACES);
        block->first = &grid->blocks[b / launch.cluster * launch.cluster];
        block->shared = (char *)aligned_alloc(16, (shared_bytes + 15) / 16 * 16);
        memset(block->shared, 0xcd, shared_bytes); /* what a block finds there is not zero */
        for (unsigned t = 0; t < launch.threads; t++)
            fiber_init(&grid->fibers[(size_t)b * launch.threads + t], block, t);
    }
    return grid;
}

/* Every thread of a block up to its next wait. */
static void block_continue(struct grid *grid, const struct block *block)
{
    struct fiber *first = &grid->fibers[(size_t)block->index * block->threads];
    for (struct fiber *fiber = first; fiber < first + block->threads; fiber++) {
        if (fiber->done || (fiber->awaited != nullptr && *fiber->awaited == fiber->seen)) continue;
        current = fiber;
        emulate_switch(&scheduler, fiber->stack_pointer);
        if (!fiber->done) continue;
        stack_put(fiber->stack);
        grid->left--;
    }
}

bool grid_continue(struct grid *grid)
{
    running = &grid->launch;
    for (const struct block &block : grid->blocks)
        if (random_below(PACES) < block.pace) block_continue(grid, &block);
    if (grid->left > 0) return true;
    for (struct block &block : grid->blocks) free(block.shared);
    delete grid;
    return false;
}

void grid_print(const struct grid *grid)
{
    const struct launch *launch = &grid->launch;
    fprintf(stderr, "    %s, %u blocks of %u threads; %zu threads have not ended",
            launch->kernel->name, launch->blocks, launch->threads, grid->left);
    for (const struct fiber &fiber : grid->fibers)
        if (!fiber.done) {
            fprintf(stderr, ", the first is %u of block %u", fiber.thread, fiber.block->index);
            break;
        }
    if (launch->params.size() >= sizeof(struct weft__cuda_link)) {
        const struct weft__cuda_link *link = (const struct weft__cuda_link *)launch->params.data();
        fprintf(stderr, "; rank %d, epoch %u", link->rank, *(const uint32_t *)link->epoch);
    }
    fprintf(stderr, "\n");
}

} // namespace emulate
