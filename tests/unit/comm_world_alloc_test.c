/* Every allocation of a communicator's life fails once: an error, nothing lost, nothing broken. */
#include "comm_ranks.h"

#include "alloc_fail.h"

/* From create to destroy on one rank. */
static weft_status live(weft_error *err)
{
    weft_world *world = NULL;
    weft_comm *comm = NULL, *group = NULL;
    weft_status status = weft_world_create(&(weft_world_options){.size = 1}, &world, err);
    if (status != WEFT_OK) return status;
    status = weft_comm_open(world, 0, &comm, err);
    if (status != WEFT_OK) goto destroy_world;
    status = weft_comm_split(comm, 0, 0, &group, err);
    if (status != WEFT_OK) goto close_comm;
    float x[8] = {1}, y[8] = {0};
    weft_reduce op = {.tokens = 1, .hidden = 8, .dtype = WEFT_F32, .x = x, .y = y};
    long before = alloc_seen;
    status = weft_comm_allreduce(group, &op, err);
    if (status == WEFT_OK && (y[0] != 1 || alloc_seen != before))
        status = weft__fail(err, WEFT_INTERNAL, "an operation is wrong, or allocates");
close_comm:
    weft_comm_close(comm);
destroy_world:
    weft_world_destroy(world);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    weft_error err = {0};
    alloc_seen = alloc_live = 0;
    assert_int_equal(live(&err), WEFT_OK);
    assert_int_equal(alloc_live, 0);
    long all = alloc_seen;
    assert_true(all >= 6);
    for (long n = 1; n <= all; n++) {
        alloc_seen = 0;
        alloc_first = alloc_last = n;
        weft_status status = live(&err);
        alloc_first = alloc_last = 0;
        if (status != WEFT_NO_MEMORY) fail_msg("allocation %ld: %s", n, err.text);
        assert_non_null(strstr(err.text, "out of memory"));
        assert_int_equal(alloc_live, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_may_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
