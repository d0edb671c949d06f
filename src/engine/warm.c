/* Reads the weights into memory before they are needed, with progress: the mapping alone would read
 * them during the first forward pass, page by page. */
#include <sys/mman.h>
#include <unistd.h>

#include "engine.h"

enum { PIECE = 16 << 20 };

static void populate(const uint8_t *data, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)data / page * page;
    size_t span = (uintptr_t)data + bytes - start;
    /* A kernel without it reads on first use instead. */
    (void)madvise((void *)start, span, MADV_POPULATE_READ);
}

void weft__warm(const struct weft__checkpoint *checkpoint, const struct weft__arch *arch,
                const struct weft__ranks_options *options, weft_comm *comm)
{
    int64_t count = weft__checkpoint_count(checkpoint);
    uint64_t total = 0, done = 0;
    for (int64_t i = 0; i < count; i++) {
        struct weft__tensor tensor = weft__checkpoint_at(checkpoint, i);
        if (!weft__tensor_used(arch, &tensor)) continue;
        total += (uint64_t)tensor.bytes;
        weft__tensor_prefetch(&tensor);
        weft_comm_heartbeat(comm);
    }
    if (options->on_progress == NULL) return;
    for (int64_t i = 0; i < count; i++) {
        struct weft__tensor tensor = weft__checkpoint_at(checkpoint, i);
        if (!weft__tensor_used(arch, &tensor)) continue;
        for (int64_t at = 0; at < tensor.bytes; at += PIECE) {
            int64_t bytes = weft__min(PIECE, tensor.bytes - at);
            populate(tensor.data + at, (size_t)bytes);
            done += (uint64_t)bytes;
            options->on_progress(options->ctx, (double)done / (double)total);
            weft_comm_heartbeat(comm);
        }
    }
}
