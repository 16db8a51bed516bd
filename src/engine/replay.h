/*
 * Exact replay: answers that come back in a rendered conversation get the tokens that were sampled.
 *
 * A client sends an answer back as text. Encoded again it may come out as other tokens than those that were sampled, and
 * the cache of the answer is lost from there on. So an engine remembers its answers. Where a prompt has the same tokens in
 * front of an answer and then the same bytes, the sampled tokens take the place of the encoded ones. The text stays the
 * same to the byte: replay changes how a text is cut into tokens and nothing else.
 *
 * A record begins behind the last special token of its prompt (the mark where the turn begins, or place 0), so it holds
 * the end of the prompt too ("ai\n<mm:think>"): a special token is always cut out by itself, while the last bytes of a
 * prompt and the first ones of an answer may be encoded as one token when they come back. It is found by the hash of the
 * tokens in front of it. Prompt and record are then read side by side:
 *
 *  - what both have said the same, up to the last place where a token ends in both, is taken from the record. This covers
 *    the whole answer, an answer that the template or its client cut short, and a prompt that ends inside one.
 *  - added tokens (markers of reasoning and of tool calls) must be the same token; text that spells one is not it.
 *  - of several answers to the same tokens the one that goes furthest counts, the most recent one of equals.
 *  - the end token is not part of a record: the template writes one behind the answer.
 *
 * Records are kept least recently used within `bytes`, at most REPLAY_SAME of them with the same tokens in front. Time is
 * linear in the prompt. Any thread; the lock is never held for longer than looking up one place.
 */
#ifndef HAYATE_ENGINE_REPLAY_H
#define HAYATE_ENGINE_REPLAY_H

#include "text/tokenizer.h"

enum { REPLAY_SAME = 32 };

typedef struct replay replay;

/* `tok` is borrowed. `bytes` bounds all memory of records and their table, which itself has at most 1/64 of it. HY_NO_FIT:
 * no memory. */
hy_status replay_open(const text_tokenizer *tok, uint64_t bytes, replay **out, hy_error *err);
void replay_close(replay *r);

/*
 * An answer is over, whatever ended it: ids[0, prompt) is its prompt as computed and ids[prompt, count) what was sampled,
 * special tokens at its end (the end token) included or not. Without memory the record is dropped. Worth it for rendered
 * conversations: without special tokens in the prompt the record holds all of it. `salt` (NULL is "") is that of the cache:
 * an answer is known to prompts of its own salt only, since where a prompt parts from it tells what it says.
 */
void replay_record(replay *r, const char *salt, const int32_t *ids, int32_t prompt, int32_t count);

/*
 * The tokens of a rendered prompt with sampled answers in it; `out` is replaced (release with hy_ids_free) and may have
 * more tokens than came in, so lengths are to be checked afterwards. `changed`: the first place, counted in tokens of
 * `out`, where an answer to the very same tokens is known and other text stands, -1: nowhere. It explains a miss when
 * reuse ends there; text that has itself been computed since is found in the cache all the same. Not a change: a prompt
 * that ends inside an answer, text behind all of an answer, and an answer without an end token (cut at a stop string, of
 * which the client never saw what came after) of which less came back. HY_NO_FIT: no memory; nothing is touched.
 */
hy_status replay_apply(replay *r, const char *salt, const int32_t *ids, size_t count, hy_ids *out, int32_t *changed,
                       hy_error *err);

/* Bytes of records and table; at most those of replay_open. */
uint64_t replay_bytes(const replay *r);

/* For tests: only these bits of the hashes count from now on, so that unlike prompts meet. Before the first record. */
void replay_weaken(replay *r, uint64_t mask);

#endif
