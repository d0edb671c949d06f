/* rows.h: the arithmetic of a row norm that CPU and GPU share to the bit. Compiled as C and as CUDA
 * C, under the flags of numerics.h. */
#ifndef WEFT_SRC_ROWS_H
#define WEFT_SRC_ROWS_H

#include "base/numerics.h"

/* ---- the tree in which squares are added: node(l, i) = node(l-1, 2i) + node(l-1, 2i+1), the
 * leaves padded with zeros to a power of two. Adding a zero to a sum of squares changes no bit, so
 * a node without a right half is its left half: any implementation that adds neighbours first, a
 * lane, a warp, a block or a cluster at a time, gives the same bits. ---- */

enum { WEFT__TREE_LEVELS = 32 };

/* Adds node i of some level, i ascending from 0. waiting[l] holds the last finished node l levels
 * up that still lacks its right neighbour. */
WEFT__HD void weft__tree_push(float *waiting, int64_t i, float node)
{
    int level = 0;
    for (; i & 1; i >>= 1) node = waiting[level++] + node;
    waiting[level] = node;
}

/* The root, after `count` nodes. */
WEFT__HD float weft__tree_root(const float *waiting, int64_t count)
{
    float root = 0.0f;
    for (int level = 0; count != 0; level++, count >>= 1)
        if (count & 1) root = waiting[level] + root;
    return root;
}

/* The definition. Faster forms must equal it. */
WEFT__HD float weft__sum_squares(const float *x, int64_t n)
{
    float waiting[WEFT__TREE_LEVELS];
    for (int64_t i = 0; i < n; i++) weft__tree_push(waiting, i, x[i] * x[i]);
    return weft__tree_root(waiting, n);
}

/* RMSNorm, rounded where transformers rounds: y = round(round(x * factor) * weight). Square root
 * and divisions are correctly rounded. */
WEFT__HD float weft__rms_factor(float sum_of_squares, int64_t n, float eps)
{
    return 1.0f / sqrtf(sum_of_squares / (float)n + eps);
}

#endif
