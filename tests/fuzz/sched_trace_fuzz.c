/* Random traces against the scheduler: see sched_trace.h. */
#include "sched_trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct weft__sched_counters counters;
    trace_run(data, size, &counters);
    return 0;
}
