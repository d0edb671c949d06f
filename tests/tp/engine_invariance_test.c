/* A row's logits have the same bits however its prompt is cut into chunks, whatever shares the
 * batch, on any team size, and with portable kernels; every rank count gives the same tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"

enum {
    PROMPT = 40,
    GENERATED = 6,
    OTHER = 23,
    ROWS_MAX = 600,
    SEQS = 3,
    PAGES = 80,
    VOCAB_MAX = 4096,
};

struct fixture {
    const char *dir;
    weft_activations activations;
    struct weft__arena arena;
    struct weft__arch arch;
    struct weft__checkpoint *checkpoint;
};

struct variant {
    int size, threads;
    bool portable;
    int chunk;                              /* of the prompt */
    enum { ALONE, COMPANY, SPLIT } company; /* another sequence beside it; its beginning, too */
    int64_t tile_rows;
};

struct result {
    float logits[1 + GENERATED][VOCAB_MAX];
};

static int32_t prompt_token(const struct fixture *f, int sequence, int i)
{
    return (int32_t)((uint32_t)(i * 7919 + sequence * 104729 + 3) % (uint32_t)f->arch.vocab);
}

/* The batch of one step: rows [first, first + count) of sequence 0, and when in company also rows
 * of sequence 1, on pages of its own, in front. Split: whole pages are computed as if by a third
 * one that the prompt shares them with. */
struct step {
    int32_t token[ROWS_MAX], position[ROWS_MAX], output[1];
    int64_t slot[ROWS_MAX];
    int32_t pages[2][PAGES / 2];
    struct weft__seq seq[SEQS];
    struct weft__batch batch;
};

static void add_rows(const struct fixture *f, struct step *s, int sequence, int first, int count,
                     bool generated)
{
    struct weft__batch *b = &s->batch;
    /* Interleaved and descending: a page table that is not used would show. */
    for (int p = 0; p < PAGES / 2; p++) s->pages[sequence][p] = PAGES - 1 - 2 * p - sequence;
    s->seq[b->seqs++] = (struct weft__seq){.row = b->tokens,
                                           .count = count,
                                           .kv_len = first + count,
                                           .generated = generated,
                                           .pages = s->pages[sequence]};
    for (int i = first; i < first + count; i++) {
        int32_t row = b->tokens++;
        s->token[row] = prompt_token(f, sequence, i);
        s->position[row] = i;
        s->slot[row] = (int64_t)s->pages[sequence][i / WEFT__PAGE] * WEFT__PAGE + i % WEFT__PAGE;
    }
}

static const float *run_step(const struct fixture *f, struct weft__ranks *ranks, int first,
                             int count, bool generated, int company)
{
    static struct step s;
    memset(&s, 0, sizeof s);
    s.batch = (struct weft__batch){.outputs = 1,
                                   .token = s.token,
                                   .position = s.position,
                                   .slot = s.slot,
                                   .seq = s.seq,
                                   .output = s.output};
    /* A prompt, then rows that count as sampled beside ours. */
    if (company != ALONE)
        add_rows(f, &s, 1, generated ? OTHER - 2 : 0, generated ? 2 : OTHER, generated);
    int shared = company == SPLIT ? (count - 1) / WEFT__PAGE * WEFT__PAGE : 0;
    if (shared > 0) add_rows(f, &s, 0, first, shared, generated);
    add_rows(f, &s, 0, first + shared, count - shared, generated);
    s.output[0] = s.batch.tokens - 1;
    const float *logits = NULL;
    weft_error err = {0};
    weft_status status = weft__ranks_step(ranks, &s.batch, &logits, &err);
    if (status != WEFT_OK) fail_msg("%s: %s", f->dir, err.text);
    return logits;
}

static struct weft__ranks *open_ranks(const struct fixture *f, const struct variant *v)
{
    const struct weft__ranks_options options = {.size = v->size,
                                                .threads = v->threads,
                                                .portable = v->portable,
                                                .timeout_ms = 60000,
                                                .limits = {.tokens = ROWS_MAX,
                                                           .outputs = SEQS,
                                                           .pages = PAGES,
                                                           .context = PAGES / 2 * WEFT__PAGE,
                                                           .activations = f->activations,
                                                           .tile_rows = v->tile_rows}};
    struct weft__ranks *ranks;
    weft_error err;
    if (weft__ranks_open(&f->arch, f->checkpoint, &options, &ranks, &err) != WEFT_OK)
        fail_msg("%s: %s", f->dir, err.text);
    return ranks;
}

static void run(const struct fixture *f, const struct variant *v, struct result *out)
{
    struct weft__ranks *ranks = open_ranks(f, v);
    size_t bytes = (size_t)f->arch.vocab * sizeof(float);
    const float *logits = NULL;
    for (int first = 0; first < PROMPT; first += v->chunk)
        logits =
            run_step(f, ranks, first, (int)weft__min(v->chunk, PROMPT - first), false, v->company);
    memcpy(out->logits[0], logits, bytes);
    for (int i = 0; i < GENERATED; i++) {
        logits = run_step(f, ranks, PROMPT + i, 1, true, v->company);
        memcpy(out->logits[1 + i], logits, bytes);
    }
    assert_true(weft__ranks_close(ranks));
}

static void open_fixture(struct fixture *f, const char *dir, weft_activations activations)
{
    weft_error err;
    *f = (struct fixture){.dir = dir, .activations = activations};
    if (weft__arch_load(dir, &f->arena, &f->arch, &err) != WEFT_OK ||
        weft__checkpoint_open(dir, &f->checkpoint, &err) != WEFT_OK)
        fail_msg("%s", err.text);
    assert_true(f->arch.vocab <= VOCAB_MAX);
}

static void close_fixture(struct fixture *f)
{
    weft__checkpoint_close(f->checkpoint);
    weft__arena_free(&f->arena);
}

static int64_t argmax(const float *row, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

static void compare(const struct fixture *f, const struct variant *v, const struct result *base,
                    const struct result *got, bool bits)
{
    for (int i = 0; i <= GENERATED; i++) {
        const float *a = base->logits[i], *b = got->logits[i];
        bool same = bits ? memcmp(a, b, (size_t)f->arch.vocab * sizeof *a) == 0
                         : argmax(a, f->arch.vocab) == argmax(b, f->arch.vocab);
        if (!same)
            fail_msg(
                "%s: row %d differs with %d ranks, %d threads, chunks of %d, tiles of %lld%s%s",
                f->dir, i, v->size, v->threads, v->chunk, (long long)v->tile_rows,
                v->portable ? ", portable" : "",
                v->company == SPLIT     ? ", split"
                : v->company == COMPANY ? ", in company"
                                        : "");
    }
}

static void check_model(const char *dir, weft_activations activations)
{
    static struct result base, got;
    static const struct variant whole = {1, 1, false, PROMPT, ALONE, 0};
    static const struct variant same_bits[] = {
        {1, 1, false, 1, ALONE, 0},        {1, 1, false, 7, ALONE, 0},
        {1, 1, false, 16, COMPANY, 0},     {1, 3, false, 17, ALONE, 0},
        {1, 2, false, PROMPT, COMPANY, 0}, {1, 1, true, PROMPT, ALONE, 0},
        {1, 2, true, 9, COMPANY, 0},       {1, 1, false, PROMPT, ALONE, 16},
        {1, 2, false, PROMPT, SPLIT, 0},
    };
    static const struct variant same_tokens[] = {{2, 1, false, 7, COMPANY, 0},
                                                 {5, 1, false, 40, ALONE, 9}};
    static const struct variant two_again[] = {{2, 2, false, PROMPT, ALONE, 0},
                                               {2, 1, false, PROMPT, COMPANY, 7},
                                               {2, 2, false, 17, ALONE, 8}};
    struct fixture f;
    open_fixture(&f, dir, activations);
    run(&f, &whole, &base);
    for (size_t i = 0; i < WEFT__COUNT(same_bits); i++) {
        run(&f, &same_bits[i], &got);
        compare(&f, &same_bits[i], &base, &got, true);
    }
    for (size_t i = 0; i < WEFT__COUNT(same_tokens); i++) {
        run(&f, &same_tokens[i], &got);
        compare(&f, &same_tokens[i], &base, &got, false);
    }
    /* Two ranks have bits of their own, which are as invariant. */
    run(&f, &same_tokens[0], &base);
    for (size_t i = 0; i < WEFT__COUNT(two_again); i++) {
        run(&f, &two_again[i], &got);
        compare(&f, &two_again[i], &base, &got, true);
    }
    close_fixture(&f);
}

#define MODEL(name)                                                                       \
    static void name(void **state)                                                        \
    {                                                                                     \
        (void)state;                                                                      \
        check_model(WEFT_SOURCE_DIR "/tests/golden/models/" #name, WEFT_ACTIVATIONS_F32); \
    }
MODEL(llama)
MODEL(qwen3)
MODEL(qwen3_moe)
MODEL(glm4_moe)
MODEL(glm_moe_dsa)
MODEL(deepseek_v3)

static void atlas(void **state)
{
    (void)state;
    check_model(WEFT_SOURCE_DIR "/models/atlas", WEFT_ACTIVATIONS_F32);
}

_Static_assert((int)ROWS_MAX > (int)WEFT__BLOCK_ROWS, "a long prompt is more than a block");

static const float *run_long(const struct fixture *f, struct weft__ranks *ranks, int chunk)
{
    const float *logits = NULL;
    for (int first = 0; first < ROWS_MAX; first += chunk)
        logits = run_step(f, ranks, first, chunk, false, ALONE);
    return logits;
}

/* A layer that takes long prompts in blocks: dense, and shared experts. */
static void blocks(void **state)
{
    static const struct variant variant = {.size = 1, .threads = 2};
    static float wanted[VOCAB_MAX];
    (void)state;
    struct fixture f;
    open_fixture(&f, WEFT_SOURCE_DIR "/models/atlas", WEFT_ACTIVATIONS_F32);
    struct weft__ranks *ranks = open_ranks(&f, &variant);
    size_t bytes = (size_t)f.arch.vocab * sizeof *wanted;
    memcpy(wanted, run_long(&f, ranks, ROWS_MAX / 3), bytes);
    assert_memory_equal(run_long(&f, ranks, ROWS_MAX), wanted, bytes);
    assert_true(weft__ranks_close(ranks));
    close_fixture(&f);
}

/* Long prompts show whether tiles pay: turns change no bit, all ranks decide the same. */
static void measured_tiles(void **state)
{
    enum { PASSES = 24, RANKS = 3 };
    static const struct variant variant = {.size = RANKS, .threads = 1};
    static float wanted[VOCAB_MAX];
    (void)state;
    struct fixture f;
    open_fixture(&f, WEFT_SOURCE_DIR "/tests/golden/models/llama", WEFT_ACTIVATIONS_F32);
    struct weft__ranks *ranks = open_ranks(&f, &variant);
    size_t bytes = (size_t)f.arch.vocab * sizeof *wanted;
    memcpy(wanted, run_long(&f, ranks, ROWS_MAX / 10), bytes);
    for (int i = 0; i < PASSES; i++)
        assert_memory_equal(run_long(&f, ranks, ROWS_MAX), wanted, bytes);
    const struct weft__rank_stats mine = weft__ranks_stats(ranks, 0);
    for (int kind = 0; kind < WEFT__TILING_KINDS; kind++) {
        assert_true(mine.tiling[kind].ratio > 0);
        for (int r = 1; r < RANKS; r++) {
            const struct weft__rank_stats theirs = weft__ranks_stats(ranks, r);
            assert_memory_equal(&theirs.tiling[kind].ratio, &mine.tiling[kind].ratio,
                                sizeof(float));
        }
    }
    assert_true(weft__ranks_close(ranks));
    close_fixture(&f);
}

/* Every kind of linear that takes INT8 inputs: alone, several of one input, experts. */
static void int8(void **state)
{
    (void)state;
    check_model(WEFT_SOURCE_DIR "/tests/golden/models/nvfp4-ct", WEFT_ACTIVATIONS_INT8);
    check_model(WEFT_SOURCE_DIR "/tests/golden/models/nvfp4-mla", WEFT_ACTIVATIONS_INT8);
    check_model(WEFT_SOURCE_DIR "/tests/golden/models/qwen3_moe-mixed", WEFT_ACTIVATIONS_INT8);
}

/* Inputs rounded as the files ask: once, before they are cut into tiles. */
static void quantised(void **state)
{
    (void)state;
    check_model(WEFT_SOURCE_DIR "/tests/golden/models/nvfp4-ct", WEFT_ACTIVATIONS_QUANTISED);
    check_model(WEFT_SOURCE_DIR "/tests/golden/models/fp8-block", WEFT_ACTIVATIONS_QUANTISED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama),    cmocka_unit_test(qwen3),       cmocka_unit_test(qwen3_moe),
        cmocka_unit_test(glm4_moe), cmocka_unit_test(glm_moe_dsa), cmocka_unit_test(deepseek_v3),
        cmocka_unit_test(atlas),    cmocka_unit_test(blocks),      cmocka_unit_test(measured_tiles),
        cmocka_unit_test(int8),     cmocka_unit_test(quantised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
