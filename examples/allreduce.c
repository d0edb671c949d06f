/* allreduce.c: four ranks, threads of this process, add up their partial sums, the residual and an
 * RMSNorm in one operation, as a transformer block does after each row-parallel linear.
 *
 *     cc allreduce.c -lweft -lpthread -lm && ./a.out */
#include <math.h>
#include <pthread.h>
#include <stdio.h>

#include <weft_comm.h>

enum { RANKS = 4, TOKENS = 2, HIDDEN = 16 };

struct rank {
    weft_world *world;
    int number;
    weft_status status;
    weft_error err;
    float stream[TOKENS * HIDDEN]; /* the residual stream, the same on every rank */
    float y[TOKENS * HIDDEN];
};

static float partial(int rank, int i) { return (float)((rank + 1) * (i % 5 - 2)); }

static weft_status work(struct rank *self, weft_comm *comm)
{
    float weight[HIDDEN];
    void *x;
    for (int i = 0; i < HIDDEN; i++) weight[i] = 0.5f;
    for (int i = 0; i < TOKENS * HIDDEN; i++) self->stream[i] = 1.0f;

    /* A linear would write its output here: peers read it in place. */
    weft_status status = weft_comm_input(comm, sizeof self->y, &x, &self->err);
    if (status != WEFT_OK) return status;
    for (int i = 0; i < TOKENS * HIDDEN; i++) ((float *)x)[i] = partial(self->number, i);

    return weft_comm_allreduce(comm,
                               &(weft_reduce){.tokens = TOKENS,
                                              .hidden = HIDDEN,
                                              .dtype = WEFT_F32,
                                              .x = x,
                                              .residual = self->stream,
                                              .residual_out = self->stream,
                                              .norm = true,
                                              .norm_weight = weight,
                                              .norm_eps = 1e-6f,
                                              .y = self->y},
                               &self->err);
}

static void *run(void *arg)
{
    struct rank *self = arg;
    weft_comm *comm = NULL;
    self->status = weft_comm_open(self->world, self->number, &comm, &self->err);
    if (self->status == WEFT_OK) self->status = work(self, comm);
    weft_comm_close(comm);
    return NULL;
}

/* The largest difference from plain arithmetic. */
static double error_of(const struct rank *rank)
{
    double worst = 0;
    for (int t = 0; t < TOKENS; t++) {
        double s[HIDDEN], squares = 0;
        for (int i = 0; i < HIDDEN; i++) {
            s[i] = 1;
            for (int r = 0; r < RANKS; r++) s[i] += (double)partial(r, t * HIDDEN + i);
            squares += s[i] * s[i];
        }
        for (int i = 0; i < HIDDEN; i++) {
            double want = s[i] / sqrt(squares / HIDDEN + 1e-6) * 0.5;
            worst = fmax(worst, fabs(want - (double)rank->y[t * HIDDEN + i]));
            worst = fmax(worst, fabs(s[i] - (double)rank->stream[t * HIDDEN + i]));
        }
    }
    return worst;
}

int main(void)
{
    static struct rank ranks[RANKS];
    pthread_t threads[RANKS];
    weft_world *world;
    weft_error err;
    int failed = 0;
    if (weft_world_create(&(weft_world_options){.size = RANKS}, &world, &err) != WEFT_OK) {
        (void)fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    for (int r = 0; r < RANKS; r++) {
        ranks[r].world = world;
        ranks[r].number = r;
        if (pthread_create(&threads[r], NULL, run, &ranks[r]) != 0) return 1;
    }
    for (int r = 0; r < RANKS; r++) {
        (void)pthread_join(threads[r], NULL);
        double error = error_of(&ranks[r]);
        if (ranks[r].status != WEFT_OK)
            (void)fprintf(stderr, "rank %d: %s\n", r, ranks[r].err.text);
        else
            (void)printf("rank %d: y = %g %g %g ..., largest error %.1e\n", r,
                         (double)ranks[r].y[0], (double)ranks[r].y[1], (double)ranks[r].y[2],
                         error);
        failed |= ranks[r].status != WEFT_OK || !(error < 1e-6);
    }
    weft_world_destroy(world);
    return failed;
}
