/* weft info: what a model directory holds, and the memory a rank needs. */
#include <stdio.h>

#include "prog.h"

struct info {
    struct weft__arena arena;
    struct weft__arch arch;
    struct weft__checkpoint *checkpoint;
    int64_t tensors; /* that the model uses */
    uint64_t bytes, bytes_of[WEFT_DTYPE_COUNT + 1];
};

struct rank_memory {
    uint64_t weights, kv_token, work; /* of the largest rank */
};

static void count_tensors(struct info *info)
{
    for (int64_t i = 0; i < weft__checkpoint_count(info->checkpoint); i++) {
        struct weft__tensor tensor = weft__checkpoint_at(info->checkpoint, i);
        if (!weft__tensor_used(&info->arch, &tensor)) continue;
        info->tensors++;
        info->bytes += (uint64_t)tensor.bytes;
        info->bytes_of[tensor.dtype] += (uint64_t)tensor.bytes;
    }
}

static weft_status measure(const struct info *info, int size, struct rank_memory *out,
                           weft_error *err)
{
    struct rank_memory most = {0};
    int64_t unit = weft__head_unit(info->checkpoint, &info->arch);
    const weft_engine_options defaults = {0};
    struct weft__model_limits limits = weft__plan_limits(&defaults, info->arch.context);
    limits.pages = 1;
    for (int r = 0; r < size; r++) {
        struct weft__weights weights;
        struct weft__shard shard = weft__shard_of(&info->arch, unit, r, size);
        WEFT__TRY(weft__weights_load(info->checkpoint, &info->arch, &shard, NULL, &weights, err));
        struct weft__model_bytes bytes = weft__model_measure(&info->arch, &shard, &limits);
        if (weights.mapped_bytes > most.weights) most.weights = weights.mapped_bytes;
        if (bytes.kv_page / WEFT__PAGE > most.kv_token) most.kv_token = bytes.kv_page / WEFT__PAGE;
        if (bytes.work > most.work) most.work = bytes.work;
        weft__weights_free(&weights);
    }
    *out = most;
    return WEFT_OK;
}

static int64_t count_true(const bool *flags, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; flags != NULL && i < n; i++) count += flags[i];
    return count;
}

static void print_attention(const struct weft__arch *a)
{
    if (a->mla) {
        (void)printf("attention  MLA: %lld heads, latents %lld (query) and %lld + %lld (cached), "
                     "head %lld + %lld, value %lld\n",
                     (long long)a->heads, (long long)a->q_lora, (long long)a->kv_lora,
                     (long long)a->rope_dim, (long long)a->nope_dim, (long long)a->rope_dim,
                     (long long)a->value_dim);
        if (a->index_top > 0)
            (void)printf(
                "sparse     top %lld of an indexer with %lld heads of %lld, own in %lld of "
                "%lld layers\n",
                (long long)a->index_top, (long long)a->index_heads, (long long)a->index_dim,
                (long long)count_true(a->index_full, a->layers), (long long)a->layers);
        return;
    }
    (void)printf("attention  %lld heads, %lld KV heads of %lld%s%s%s\n", (long long)a->heads,
                 (long long)a->kv_heads, (long long)a->head_dim, a->qkv_bias ? ", biases" : "",
                 a->qk_norm ? ", norms on q and k" : "", a->window > 0 ? ", sliding window" : "");
}

static bool tied(const struct info *info)
{
    return info->arch.tied && !weft__weights_untied(info->checkpoint);
}

static weft_status print_text(const struct info *info, const char *dir, weft_error *err)
{
    const struct weft__arch *a = &info->arch;
    (void)printf("model      %s\nfamily     %s\nshape      %lld layers, hidden %lld, vocabulary "
                 "%lld%s, context %lld\n",
                 dir, a->family->model_type, (long long)a->layers, (long long)a->hidden,
                 (long long)a->vocab, tied(info) ? " (tied)" : "", (long long)a->context);
    print_attention(a);
    if (a->experts > 0)
        (void)printf("experts    %lld of %lld a token in %lld layers, width %lld, shared %lld\n",
                     (long long)a->experts_top, (long long)a->experts,
                     (long long)count_true(a->sparse, a->layers), (long long)a->expert_intermediate,
                     (long long)a->shared_intermediate);
    if (a->intermediate > 0) (void)printf("dense      width %lld\n", (long long)a->intermediate);
    (void)printf("tensors    %lld, %.1f MiB:", (long long)info->tensors, weft__mib(info->bytes));
    for (int d = 0; d <= WEFT_DTYPE_COUNT; d++)
        if (info->bytes_of[d] > 0)
            (void)printf(" %s %.1f MiB", weft_dtype_name((weft_dtype)d),
                         weft__mib(info->bytes_of[d]));
    (void)printf("\n\nlargest rank   weights MiB   KV bytes/token   work MiB (default --chunk)\n");
    for (int size = 1; size <= WEFT__MAX_RANKS; size *= 2) {
        struct rank_memory m;
        WEFT__TRY(measure(info, size, &m, err));
        (void)printf("tp %-12d %11.1f %16llu %10.1f\n", size, weft__mib(m.weights),
                     (unsigned long long)m.kv_token, weft__mib(m.work));
    }
    weft_error note;
    if (weft__weights_unread(info->checkpoint, a, &note) > 0)
        (void)printf("\nunread     %s\n", note.text);
    return WEFT_OK;
}

static weft_status print_json(const struct info *info, weft_error *err)
{
    const struct weft__arch *a = &info->arch;
    json_t *types = json_object(), *ranks = json_array();
    weft_status status = WEFT_OK;
    for (int d = 0; d <= WEFT_DTYPE_COUNT; d++)
        if (info->bytes_of[d] > 0)
            (void)json_object_set_new(types, weft_dtype_name((weft_dtype)d),
                                      json_integer((json_int_t)info->bytes_of[d]));
    for (int size = 1; size <= WEFT__MAX_RANKS && status == WEFT_OK; size++) {
        struct rank_memory m;
        status = measure(info, size, &m, err);
        if (status == WEFT_OK)
            (void)json_array_append_new(ranks, json_pack("{s:i, s:I, s:I, s:I}", "tp", size,
                                                         "weights_bytes", (json_int_t)m.weights,
                                                         "kv_bytes_token", (json_int_t)m.kv_token,
                                                         "work_bytes", (json_int_t)m.work));
    }
    json_int_t unread = weft__weights_unread(info->checkpoint, a, NULL);
    json_t *root = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:I, s:I, s:I, s:o, s:o}", "family",
        a->family->model_type, "layers", (json_int_t)a->layers, "hidden", (json_int_t)a->hidden,
        "heads", (json_int_t)a->heads, "kv_heads", (json_int_t)a->kv_heads, "vocab",
        (json_int_t)a->vocab, "tied", (int)tied(info), "context", (json_int_t)a->context, "experts",
        (json_int_t)a->experts, "bytes", (json_int_t)info->bytes, "unread_tensors", unread,
        "bytes_by_type", types, "largest_rank", ranks);
    if (status != WEFT_OK)
        json_decref(root);
    else if (!weft__print_json(root, JSON_INDENT(2)))
        status = weft__fail(err, WEFT_NO_MEMORY, "out of memory for the output");
    return status;
}

int weft__cmd_info(int argc, char **argv)
{
    bool json = false;
    int status;
    weft_error err;
    struct info info = {0};
    const struct weft__option options[] = {
        {WEFT__OPTION_FLAG, "json", &json, 0, 0, NULL, "for machines"},
        {0},
    };
    struct weft__command_line line = {
        .command = "info",
        .synopsis = "MODEL",
        .about =
            "Family, shapes, bytes by type, the memory of the largest rank, tensors without a use.",
        .options = options,
        .arguments_min = 1,
        .arguments_max = 1,
    };
    if (!weft__command_line_parse(&line, argc, argv, &status)) return status;
    const char *dir = line.argument[0];
    weft_status result = weft__arch_load(dir, &info.arena, &info.arch, &err);
    if (result == WEFT_OK) result = weft__checkpoint_open(dir, &info.checkpoint, &err);
    if (result == WEFT_OK) {
        count_tensors(&info);
        result = json ? print_json(&info, &err) : print_text(&info, dir, &err);
    }
    weft__checkpoint_close(info.checkpoint);
    weft__arena_free(&info.arena);
    return result == WEFT_OK ? WEFT__EXIT_OK : weft__report("info", &err);
}
