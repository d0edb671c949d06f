/* rank.h: what model.c allocates and forward.c runs on, private to the model module. */
#ifndef WEFT_SRC_MODEL_RANK_H
#define WEFT_SRC_MODEL_RANK_H

#include "model.h"

/* Prompt rows below this position expand keys and values from the latents (the naive form, cheaper
 * when many rows share them); later rows and sampled ones take the absorbed form. The choice
 * depends on the row alone, never on how prompts are cut into chunks, so bits do not either. */
enum { WEFT__NAIVE_POSITIONS = 1024 };

/* Device memory of one step. T: rows of the batch; h: this rank's query heads, g: its KV heads. */
struct weft__work {
    float *residual, *hidden; /* [T, H] */
    float *cosine, *sine;     /* [T, rope.dim / 2] */
    float *quantised;         /* the widest input of a linear, when activations are quantised */
    struct weft__int8 *int8;  /* the same, when they are INT8 */
    /* attention */
    float *q;                 /* MLA: [T, h, key]; else [T, h + 2 g, head_dim]: q, k and v */
    float *heads;             /* [T, h, value] */
    float *q_latent, *latent; /* [T, q_lora]; [T, kv_lora + rope] */
    float *q_absorbed, *z;    /* [T, h, kv_lora + rope]; [T, h, kv_lora] */
    float *naive_latent;      /* [N, kv_lora + rope]; N = min(context, NAIVE_POSITIONS) */
    float *naive_k, *naive_v; /* [N, h, key]; [N, h, value] */
    float *index_q, *index_k, *index_weight; /* [T, ih, id]; [T, id]; [T, ih] */
    int32_t *selected, *selected_count;      /* [T, top]; [T] */
    /* feed-forward */
    float *gate_up;                              /* [B, 2, I']; B = min(T, BLOCK_ROWS) */
    float *shared;                               /* [T, H] */
    float *expert_gate, *expert_up, *expert_out; /* [T top, Im']; [T top, H] */
    float *router, *expert_weight;               /* [T, E]; [T, top] */
    int32_t *expert, *slot;                      /* [T, top] */
    int32_t *expert_offset, *x_row;              /* [E + 1]; [T top] */
    /* output, O rows */
    float *out_hidden, *out_part, *logits; /* [O, H]; [O, V'], one rank: the logits; [O, V] */
};

struct weft__cache { /* one layer's pages; row strides in weft__model */
    float *k, *v;    /* MLA: k holds the latents [slots, kv_lora + rope] */
    float *index_k;  /* full layers: [slots, index_dim] */
};

enum { WEFT__TILING_SAMPLES = 32 };

/* How what is summed over ranks is computed (tiling.c). */
struct weft__tiling {
    float *last;                       /* [layers] ns a row when the layer ran last */
    float ratio[WEFT__TILING_SAMPLES]; /* in tiles / at once, of a layer in two passes */
    int32_t samples;
    float median; /* of all ratios, rank 0's; 0: not decided yet */
};

struct weft__model {
    const struct weft__arch *arch;
    const struct weft__device *device;
    struct weft__dev *dev;
    weft_comm *comm;
    struct weft__shard shard;
    struct weft__model_limits limits;
    struct weft__arena arena;
    struct weft__weights weights;
    struct weft__work work;
    struct weft__cache *cache; /* [layers] */
    float *frequency;          /* [rope.dim / 2] */
    float rope_factor;
    int32_t *kv_head;           /* [h] the rank's KV head of each of its query heads */
    int32_t *zero_head;         /* [h] zeros: MLA's absorbed form has one KV head */
    int32_t *own_head;          /* [h] 0, 1, 2 ..: its naive form has as many as query heads */
    int32_t *identity_pages;    /* of the naive form's scratch keys */
    struct weft__seq *absorbed; /* [T] */
    size_t *vocab_bytes;        /* [size] logits each rank contributes a row */
    struct weft__tiling tiling[WEFT__TILING_KINDS];
    int64_t trials;  /* passes in which layers took turns with tiles */
    void *memory[2]; /* work and cache */
};

/* Rows of a tile; 0: at once. */
int64_t weft__tiling_choose(const struct weft__model *m, enum weft__tiling_kind kind, int64_t layer,
                            int64_t rows);
/* After `rows` rows were computed and summed. */
void weft__tiling_note(struct weft__model *m, enum weft__tiling_kind kind, int64_t layer,
                       int64_t rows, uint64_t ns);
/* After all layers. */
weft_status weft__tiling_decide(struct weft__model *m, int64_t rows, weft_error *err);

#endif
