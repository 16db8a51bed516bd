/*
 * The drafter on the cpu backend: its packed weights, and what a step keeps for it.
 *
 * A round of drafts runs through all layers in slices of at most DRAFT_SLICE rows, whole sequences, so that memory does not
 * grow with the number of sequences: of a slice there are the rows of all tensors and U [rows, vocab]. Every product of a row
 * is one chain in one order and attention folds blocks in ascending order, so that a sequence's drafts do not depend on
 * the slice that it is in.
 */
#ifndef HAYATE_BACKEND_CPU_DRAFT_H
#define HAYATE_BACKEND_CPU_DRAFT_H

#include "backend/cpu/blocks.h"
#include "backend/cpu/linear.h"

enum { DRAFT_SLICE = TILE_ROWS };

typedef struct cpu_draft_layer {
    float *input_gain, *post_gain; /* [hidden] what a norm multiplies with: 1 + w, or w with plain_norm; as all gains */
    float *q_gain, *k_gain;        /* [head_dim] */
    cpu_linear q, k, v, o, gate, up, down;
} cpu_draft_layer;

typedef struct cpu_drafter {
    cpu_draft_layer *layer; /* [layers] */
    cpu_linear fc, markov_out;
    cpu_linear own_head;    /* WEIGHT_NONE: it is the target's */
    const cpu_linear *head; /* that one or own_head */
    float *hidden_gain, *final_gain; /* [hidden] */
    float *confidence, *confidence_bias; /* [hidden + markov_rank], [1]; NULL: no confidence head */
    float *frequency; /* [rotary_dim / 2] */
} cpu_drafter;

/* A sequence of the running `draft` that has an anchor and room behind it. */
typedef struct cpu_draft_sequence {
    const ops_draft *how;
    int32_t place;    /* in `draft` */
    int32_t first;    /* its first row in the slice */
    int32_t position; /* of the anchor */
    int32_t wanted;   /* drafts that there is room for; the block is computed with how->rows */
    int32_t before;   /* the last token: the anchor, or the draft that was made last; -1: its drafts have ended */
} cpu_draft_sequence;

typedef struct cpu_draft {
    /* Of the context, for T rows or a tile of up to TILE_ROWS. */
    uint16_t *taps; /* [T, tap_count*hidden] bf16: the rounded input of fc */
    float *tile;    /* [tile, tap_count*hidden] some of them, as fc reads them */
    float *c;       /* [T, hidden], bf16 values */
    float *context; /* [2 * layers][tile, kv_heads*head_dim]: keys and values of all layers as projected */

    /* Of a slice, for R rows. */
    cpu_draft_sequence *sequence; /* [drafts]: of all slices */
    int32_t count;                /* sequences of the slice, from sequence[begin] on */
    int32_t begin;
    int32_t rows;           /* of the slice */
    float *x, *h;           /* [R, hidden] residual; normed, bf16 values */
    float *cosine, *sine;   /* [R, rotary_dim / 2] */
    float *q;               /* [R, heads, head_dim], bf16 values */
    float *k, *v;           /* [R, kv_heads, head_dim] as projected */
    uint16_t *own;          /* per sequence [kv_heads][2][g, head_dim] bf16: keys and values of its block, at the sequence's
                             * first row * 2 * kv_heads * head_dim */
    float *attention;       /* [R, heads, head_dim], bf16 values */
    float *z;               /* [R, width] SwiGLU outputs, bf16 values */
    float *logits;          /* [R, vocab]: U, then L */
    float *markov;          /* [R, markov_rank] of the slice's sequences: markov_in of the tokens before, bf16 values */
    float *final;           /* [drafts, draft_rows, hidden]: OPS_DRAFT_H */
    cpu_softmax *part_state; /* [parts][DRAFT_MAX_BLOCK] of single blocks, then [open_parts][DRAFT_MAX_BLOCK] of their folds */
    float *part_out;         /* [parts + open_parts][DRAFT_MAX_BLOCK][head_dim][16] */
    int parts, open_parts;
} cpu_draft;

#endif
