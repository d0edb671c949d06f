/* model.h: a transformer split over ranks: architecture, shard, weights, forward pass.
 *
 * A family (llama.c, glm_moe_dsa.c, ...) only reads its config into a weft__arch; everything after
 * that is shared. Notation of shapes: H hidden, V vocabulary, nh query heads, nkv KV heads of the
 * whole model; a rank's own counts are in weft__shard. */
#ifndef WEFT_SRC_MODEL_H
#define WEFT_SRC_MODEL_H

#include "dev/dev.h"
#include "format/format.h"
#include "weft_comm.h"

/* ---- architecture ---- */

enum weft__rope_kind { WEFT__ROPE_DEFAULT, WEFT__ROPE_LINEAR, WEFT__ROPE_LLAMA3, WEFT__ROPE_YARN };

struct weft__rope {
    enum weft__rope_kind kind;
    int64_t dim;      /* elements that rotate, even */
    bool interleaved; /* pairs (2j, 2j+1), else (j, j + dim/2) */
    double theta, factor, original_context;
    double low_freq, high_freq;                          /* llama3 */
    double beta_fast, beta_slow, mscale, mscale_all_dim; /* yarn */
    double attention_factor;                             /* yarn; 0: from the formula */
    bool truncate;                                       /* yarn */
};

struct weft__arch {
    const struct weft__family *family;
    int64_t vocab, hidden, layers, context; /* context: max_position_embeddings */
    float norm_eps;
    bool tied; /* lm_head is the embedding, unless the weights have one */
    struct weft__rope rope;
    float attention_scale;
    int64_t heads, kv_heads;
    int64_t window; /* 0: none */

    bool mla;
    int64_t head_dim;                                       /* not MLA */
    bool qkv_bias, o_bias, qk_norm;                         /* not MLA: q, k, v; MLA: q_a, kv_a */
    int64_t q_lora, kv_lora, nope_dim, rope_dim, value_dim; /* MLA; q_lora 0: plain q_proj */
    float latent_eps;

    int64_t index_heads, index_dim, index_top; /* sparse attention; index_top 0: dense */
    bool index_interleaved;
    const bool *index_full; /* [layers] has its own indexer, else uses the last full layer's */

    int64_t intermediate; /* dense layers */
    bool mlp_bias;
    const bool *sparse; /* [layers] mixture of experts */
    int64_t experts, experts_top, expert_intermediate, shared_intermediate; /* shared 0: none */
    int64_t groups, top_groups;
    bool router_sigmoid, router_bias, router_normalise;
    float router_scale;
};

struct weft__family {
    const char *model_type; /* config.json's */
    weft_status (*configure)(const struct weft__node *config, struct weft__arena *arena,
                             struct weft__arch *arch, weft_error *err);
};

/* Reads and checks DIR/config.json. Lists live in the arena. */
weft_status weft__arch_load(const char *dir, struct weft__arena *arena, struct weft__arch *out,
                            weft_error *err);

/* Config pieces that families share. */
weft_status weft__arch_gqa(const struct weft__node *config, struct weft__arch *arch,
                           weft_error *err); /* heads, head_dim, biases, window */
weft_status weft__arch_mla(const struct weft__node *config, struct weft__arch *arch,
                           weft_error *err);
weft_status weft__arch_rope(const struct weft__node *config, int64_t dim, bool interleaved,
                            struct weft__rope *rope, weft_error *err);
weft_status weft__arch_sigmoid_moe(const struct weft__node *config, struct weft__arena *arena,
                                   struct weft__arch *arch, weft_error *err);

/* frequency [dim/2]; *factor multiplies cos and sin. */
void weft__rope_frequencies(const struct weft__rope *rope, float *frequency, float *factor);
/* YaRN's ms(s, m): 1 for s <= 1, else 0.1 m ln s + 1. */
double weft__yarn_mscale(double scale, double m);

/* ---- shard: what of the model is one rank's ---- */

struct weft__range {
    int64_t begin, count;
};

/* n units cut into `size` ranges; the first n mod size ranks get one more. */
struct weft__range weft__shard_range(int64_t n, int64_t unit, int rank, int size);

struct weft__shard {
    int rank, size;
    struct weft__range heads;    /* query heads */
    struct weft__range kv_heads; /* those its query heads read; a boundary head is on two ranks */
    struct weft__range vocab;    /* rows of lm_head */
};

/* ---- weights of one rank; slices of the mapping, or small F32 vectors of their own ---- */

struct weft__mlp_weights {
    struct weft__matrix gate, up, down; /* [I', H], [I', H], [H, I']; gate and up run as one */
};

struct weft__layer {
    const float *input_norm, *post_norm;      /* [H] */
    struct weft__matrix q, k, v, o;           /* not MLA: q, k and v run as one; o also MLA */
    const float *q_norm, *k_norm;             /* [head_dim], or NULL */
    struct weft__matrix q_a, q_b, kv_a, kv_b; /* MLA; without q_lora q_b is q_proj */
    const float *q_a_norm, *kv_a_norm;
    struct weft__matrix index_q, index_k, index_weight; /* full layers */
    const float *index_norm, *index_norm_bias;
    struct weft__mlp_weights mlp;                               /* dense layer, or shared expert */
    struct weft__matrix router;                                 /* [E, H] */
    const float *router_bias;                                   /* [E], or NULL */
    struct weft__matrix *expert_gate, *expert_up, *expert_down; /* [E] */
};

struct weft__weights {
    struct weft__matrix embed;   /* [V, H], whole on every rank */
    struct weft__matrix lm_head; /* [V', H] */
    const float *final_norm;
    struct weft__layer *layer; /* [layers] */
    size_t mapped_bytes;       /* of the checkpoint that this rank reads */
    struct weft__arena arena;  /* of vectors and tables */
};

/* Finds and slices every tensor of the rank. comm not NULL: also reads the scales and refuses NaN
 * among them, with a sign of life a matrix. */
weft_status weft__weights_load(struct weft__checkpoint *checkpoint, const struct weft__arch *arch,
                               const struct weft__shard *shard, weft_comm *comm,
                               struct weft__weights *out, weft_error *err);
void weft__weights_free(struct weft__weights *weights);
/* Whether there is an lm_head. It is used even where config.json ties it to the embedding, as by
 * the transformers library. */
bool weft__weights_untied(const struct weft__checkpoint *checkpoint);

/* Query heads that a rank takes together, so that o_proj's columns split on NVFP4 blocks. */
int64_t weft__head_unit(const struct weft__checkpoint *checkpoint, const struct weft__arch *arch);

struct weft__shard weft__shard_of(const struct weft__arch *arch, int64_t head_unit, int rank,
                                  int size);

/* False for tensors of layers beyond the model's (multi-token prediction), which are neither read
 * nor counted. */
bool weft__tensor_used(const struct weft__arch *arch, const struct weft__tensor *tensor);

/* After weft__weights_load by any rank: how many tensors it had no use for, without those which
 * real checkpoints are known to hold beyond the model. If there are any, note says so and names
 * one. */
int64_t weft__weights_unread(const struct weft__checkpoint *checkpoint,
                             const struct weft__arch *arch, weft_error *note);

/* ---- one rank's model, ready to run ---- */

struct weft__model; /* weights, KV cache, work space of one rank */

struct weft__model_limits {
    int64_t tokens;  /* rows of a batch, at most */
    int64_t outputs; /* rows with logits, at most */
    int64_t pages;   /* KV pages */
    int64_t context; /* keys of a sequence, at most */
    weft_activations activations;
    int64_t tile_rows; /* of what is summed in tiles; 0: measured whether */
};

struct weft__model_bytes { /* of one rank */
    size_t weights, kv_page, work;
};

/* What weft__model_open would allocate; kv_page is the bytes of one KV page. */
struct weft__model_bytes weft__model_measure(const struct weft__arch *arch,
                                             const struct weft__shard *shard,
                                             const struct weft__model_limits *limits);

/* Rows that a dense feed-forward layer computes, and a message of comm holds, at once. */
enum { WEFT__BLOCK_ROWS = 512 };

struct weft__model_parts { /* borrowed while the model is open */
    const struct weft__arch *arch;
    struct weft__checkpoint *checkpoint;
    const struct weft__device *device;
    struct weft__dev *dev;
    weft_comm *comm; /* messages hold WEFT__BLOCK_ROWS rows, or limits.tokens if that is less */
};

/* Collective: every rank of parts->comm calls it. */
weft_status weft__model_open(const struct weft__model_parts *parts,
                             const struct weft__model_limits *limits, struct weft__model **out,
                             weft_error *err);
void weft__model_close(struct weft__model *model);

enum weft__tiling_kind { WEFT__TILING_O, WEFT__TILING_MLP, WEFT__TILING_KINDS };

struct weft__tiling_choice { /* of o_proj, or of dense feed-forward layers (tiling.c) */
    float ratio;             /* time of computing and summing in tiles / at once; 0: not measured */
    bool tiles;              /* what longer prompts do */
};

struct weft__tiling_choice weft__model_tiling(const struct weft__model *model,
                                              enum weft__tiling_kind kind);

/* Runs one step. *logits [outputs, vocab] stay valid until the next call; the same on all ranks. */
weft_status weft__model_forward(struct weft__model *model, const struct weft__batch *batch,
                                const float **logits, weft_error *err);

#endif
