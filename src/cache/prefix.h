/*
 * What the blocks of the cache hold, by content: the index that finds the longest part of a prompt that was computed before.
 *
 * Contents hang on a chain of keys. The root of a chain is a hash of the numerics id and the salt; the key after a full
 * block is SHA-256(key before it, its 128 token ids as 32-bit little-endian numbers). A block is listed under the key
 * before it with the tokens whose rows it holds, 1 to 128; so all continuations of a beginning are found together, and of
 * a partly filled or differing block it is known to the token how much fits. Tokens are compared, not their hashes.
 *
 * What had to make room is remembered by fingerprints in a table that forgets, so that a miss can say why. Not for
 * several threads at once. Nothing is allocated after prefix_open.
 */
#ifndef HAYATE_CACHE_PREFIX_H
#define HAYATE_CACHE_PREFIX_H

#include "hayate.h"

enum { PREFIX_KEY = 32, PREFIX_BLOCK = 128 };

typedef struct prefix prefix;

/* For block numbers below `blocks`. HY_NO_FIT without memory. */
hy_status prefix_open(int32_t blocks, const uint8_t identity[PREFIX_KEY], prefix **out, hy_error *err);
void prefix_close(prefix *p);

/* The key before the first block of a sequence with a salt (NULL is ""). */
void prefix_root(prefix *p, const char *salt, uint8_t key[PREFIX_KEY]);
/* The key after a full block; `before` and `after` may be the same. */
void prefix_next(const uint8_t before[PREFIX_KEY], const int32_t ids[PREFIX_BLOCK], uint8_t after[PREFIX_KEY]);

/*
 * `block` holds the rows of ids[0, count) behind `before`. Called again as more rows are written, with the same `before`
 * and ids that continue those of the call before. `first`: no block comes before it. At 128 it gets the key `after`.
 */
void prefix_note(prefix *p, int32_t block, const uint8_t before[PREFIX_KEY], bool first, const int32_t *ids,
                 int32_t count);
/* The block will hold something else; `evicted`: it had to make room. Nothing to do for one that holds nothing. */
void prefix_forget(prefix *p, int32_t block, bool evicted);
/* The key after a full block that is listed; NULL: it is not, or not full. */
const uint8_t *prefix_key(const prefix *p, int32_t block);
/* Tokens that a block is listed with. */
int32_t prefix_tokens(const prefix *p, int32_t block);

/* The block that holds the longest beginning of ids[0, count) behind `before`, and how many tokens that is. -1: none. Of
 * several the one noted last. */
int32_t prefix_find(const prefix *p, const uint8_t before[PREFIX_KEY], const int32_t *ids, int32_t count,
                    int32_t *tokens);

/* Why nothing more than the `found` tokens of the block after `before` was found, ids[0, count) being what was wanted:
 * HY_MISS_EVICTED, HY_MISS_SALT or HY_MISS_NEW. */
hy_miss prefix_why(const prefix *p, const uint8_t before[PREFIX_KEY], bool first, const int32_t *ids, int32_t count,
                   int32_t found);

#endif
