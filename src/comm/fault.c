/* fault.c: failures of a session: from the record to an error that names the rank, and aborts. */
#include <stdio.h>
#include <string.h>

#include "comm.h"

enum { RECORD_WAIT_NS = 100 * 1000 * 1000 };

const char *weft__comm_op_name(uint32_t op)
{
    static const char *const names[] = {
#define X(name, text) text,
        WEFT__COMM_OPS(X)
#undef X
    };
    return op < WEFT__COUNT(names) ? names[op] : "unknown operation";
}

static const char *phase_name(uint32_t phase)
{
    static const char *const names[] = {
#define X(name, text) text,
        WEFT__COMM_PHASES(X)
#undef X
    };
    return phase < WEFT__COUNT(names) ? names[phase] : "unknown phase";
}

/* The record, or NULL while there is none. Another rank may be writing it this moment. */
static const struct weft__comm_fault *record_of(const weft_comm *comm)
{
    struct weft__comm_fault *fault = comm->link.fault;
    /* Acquire: pairs with the release in weft__comm_fail. */
    uint32_t state = atomic_load_explicit(&fault->state, memory_order_acquire);
    if (state == WEFT__COMM_HEALTHY) return NULL;
    if (state == WEFT__COMM_FAILING)
        (void)weft__wait_change(&fault->state, state, weft__now_ns() + RECORD_WAIT_NS);
    return fault;
}

static weft_status status_of(const struct weft__comm_fault *fault)
{
    switch (fault->kind) {
    case WEFT__FAULT_MISMATCH:
        return WEFT_INVALID;
    case WEFT__FAULT_CLOSED:
    case WEFT__FAULT_ENDED:
    case WEFT__FAULT_ABORT:
        return WEFT_PEER;
    default:
        return WEFT_TIMEOUT;
    }
}

static weft_status fail_mismatch(const struct weft__comm_fault *fault, weft_error *err)
{
    const struct weft__comm_post *post[2] = {&fault->mine, &fault->theirs};
    char call[2][120];
    for (int i = 0; i < 2; i++) {
        const struct weft__comm_post *p = post[i];
        if (p->op == WEFT__ALLREDUCE || p->op == WEFT__REDUCE_SCATTER)
            (void)snprintf(call[i], sizeof call[i], "%s of [%lld, %lld] %s",
                           weft__comm_op_name(p->op), (long long)p->shape[0],
                           (long long)p->shape[1], weft_dtype_name((weft_dtype)p->dtype));
        else
            (void)snprintf(call[i], sizeof call[i], "%s of %lld x %lld bytes",
                           weft__comm_op_name(p->op), (long long)p->shape[0],
                           (long long)p->shape[1]);
    }
    bool alike = strcmp(call[0], call[1]) == 0;
    return weft__fail(err, WEFT_INVALID, "rank %d called %s, rank %d called %s%s (epoch %u)",
                      fault->rank, call[0], fault->peer, call[1],
                      alike ? " with other options (residual, norm, eps, quantisation, row sizes, "
                              "root, position or place in the heap)"
                            : "",
                      fault->epoch);
}

weft_status weft__comm_health(const weft_comm *comm, weft_error *err)
{
    const struct weft__comm_fault *fault = record_of(comm);
    if (fault == NULL) return WEFT_OK;
    weft_status status = status_of(fault);
    const char *op = weft__comm_op_name(fault->op), *phase = phase_name(fault->phase);
    unsigned long long elapsed_ms = fault->elapsed_ns / 1000000;
    switch (fault->kind) {
    case WEFT__FAULT_MISMATCH:
        return fail_mismatch(fault, err);
    case WEFT__FAULT_ABORT:
        return weft__fail(err, status, "rank %d gave up: %s", fault->peer, fault->reason);
    case WEFT__FAULT_CLOSED:
        return weft__fail(err, status,
                          "%s: rank %d closed its communicator while rank %d waited for its %s "
                          "(epoch %u)",
                          op, fault->peer, fault->rank, phase, fault->epoch);
    case WEFT__FAULT_ENDED:
        return weft__fail(err, status,
                          "%s: the process of rank %d has ended; rank %d waited %llu ms for an %s "
                          "(epoch %u)",
                          op, fault->peer, fault->rank, elapsed_ms, phase, fault->epoch);
    case WEFT__FAULT_DEADLOCK:
        return weft__fail(err, status,
                          "%s: rank %d and rank %d wait for each other, in different operations "
                          "or groups; rank %d waited %llu ms for an %s (epoch %u)",
                          op, fault->rank, fault->peer, fault->rank, elapsed_ms, phase,
                          fault->epoch);
    default:
        return weft__fail(err, status,
                          "%s: rank %d gave no sign of life for %llu ms; rank %d waited %llu ms "
                          "for an %s (epoch %u)",
                          op, fault->peer, (unsigned long long)(comm->link.timeout_ns / 1000000),
                          fault->rank, elapsed_ms, phase, fault->epoch);
    }
}

bool weft_comm_failed(const weft_comm *comm, weft_comm_failure *out)
{
    const struct weft__comm_fault *fault = record_of(comm);
    if (fault == NULL) return false;
    *out = (weft_comm_failure){.status = status_of(fault),
                               .rank = fault->rank,
                               .peer = fault->peer,
                               .op = weft__comm_op_name(fault->op),
                               .phase = phase_name(fault->phase),
                               .epoch = fault->epoch,
                               .elapsed_ns = fault->elapsed_ns};
    return true;
}

void weft_comm_abort(weft_comm *comm, const char *reason)
{
    int rank = weft__comm_world_rank(comm);
    struct weft__comm_fault what = {.kind = WEFT__FAULT_ABORT, .rank = rank, .peer = rank};
    (void)snprintf(what.reason, sizeof what.reason, "%s", reason != NULL ? reason : "no reason");
    for (char *c = what.reason; *c != '\0'; c++)
        if (*c == '\n' || *c == '\r') *c = ' '; /* errors have one line */
    weft__comm_fail(comm->link.fault, &what);
    if (comm->link.wire != NULL) comm->link.wire->pump(comm->link.wire);
}

void weft_comm_heartbeat(weft_comm *comm)
{
    struct weft__comm_rank *self = comm->link.world[weft__comm_world_rank(comm)];
    /* Relaxed: peers only see whether it changed. */
    uint32_t beat = atomic_load_explicit(&self->heartbeat, memory_order_relaxed);
    atomic_store_explicit(&self->heartbeat, beat + 1, memory_order_relaxed);
    if (comm->link.wire != NULL) comm->link.wire->pump(comm->link.wire);
}
