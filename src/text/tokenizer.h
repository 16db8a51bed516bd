/*
 * Byte-level BPE: text to token ids and back.
 *
 * Encoding runs in four steps. Added tokens ("]~b]", "<mm:think>", ...) are cut out of the raw text, leftmost and
 * longest first. What lies between is normalised (NFC where the file says so), cut into pre-tokens (text/pretokenize.h)
 * and each pre-token is merged, lowest merge first, ties leftmost. Time is linear in the text up to the logarithm of
 * the longest pre-token, whatever the text is.
 *
 * Two kinds of file are read:
 *  - tokenizer.json of the `tokenizers` library with a BPE model: vocabulary, merges (either spelling), added tokens
 *    with their flags, normaliser NFC or none, and a pre-tokenizer that this program knows by its pattern.
 *  - a rank file: one "base64 rank" line per token. It carries no added tokens, so that of MiniMax-M3 (200,000 ranks)
 *    gets the table of M3's 61 added tokens; any other number of ranks has none. Text is normalised to NFC.
 * No token is added at the start or the end of a text.
 *
 * A tokenizer does not change after it was opened and may be used from several threads.
 */
#ifndef HAYATE_TEXT_TOKENIZER_H
#define HAYATE_TEXT_TOKENIZER_H

#include "base/buffer.h"
#include "hayate.h"
#include "text/token_trie.h"

typedef struct text_tokenizer text_tokenizer;

/*
 * Opens a folder (its tokenizer.json, else its tokenizer.tiktoken), a tokenizer.json or a rank file; a file's first
 * character tells which. HY_FAILED: cannot be read, or nothing of the kind in the folder. HY_BAD_MODEL: damaged, or of
 * a kind that is not supported, with the field at fault. *out is owned by the caller.
 */
hy_status text_tokenizer_open(const char *path, text_tokenizer **out, hy_error *err);
void text_tokenizer_close(text_tokenizer *tok);

/* The same from bytes in memory; `name` is what messages call the file. Nothing of `data` is kept. */
hy_status text_tokenizer_read(const char *data, size_t size, const char *name, text_tokenizer **out, hy_error *err);

/* True when the folder holds a file that text_tokenizer_open would read. */
bool text_tokenizer_present(const char *folder);

/*
 * Encodes `length` bytes of UTF-8. With `parse_added` added tokens in the text become their ids; without, the whole
 * text is ordinary. Replaces *out (release with hy_ids_free); untouched on failure. Invalid UTF-8 is HY_BAD_INPUT with
 * the offset of the first bad byte: a lossy prompt would be answered as if it had been asked.
 */
hy_status text_tokenizer_encode(const text_tokenizer *tok, const char *text, size_t length, bool parse_added,
                                hy_ids *out, hy_error *err);

/* One more than the largest id. A model may have more embedding rows than that (padding). */
int32_t text_tokenizer_vocab_size(const text_tokenizer *tok);

/* The bytes that a token stands for, which need not be whole characters; an added token's text. Ids without a token
 * (padding, outside the vocabulary) give "" and length 0. Borrowed, with a NUL after it. */
const char *text_tokenizer_bytes(const text_tokenizer *tok, int32_t id, size_t *length);

/* An added token: matched in text before anything else. */
bool text_tokenizer_is_added(const text_tokenizer *tok, int32_t id);

/* An added token that does not appear in generated text (skip_special_tokens): the file's "special" flag. With a rank
 * file: M3's 200000 to 200049; the reasoning and tool-call markers stay visible, since parsers read them as text. */
bool text_tokenizer_is_special(const text_tokenizer *tok, int32_t id);

/* The id of the token that stands for exactly this text, -1 if there is none. Added tokens come first. */
int32_t text_tokenizer_find(const text_tokenizer *tok, const char *text);

/* Appends the token as a vocabulary spells it: bytes in the GPT-2 byte alphabet (a space is U+0120), added tokens as
 * they are. Nothing for an id without a token. */
void text_tokenizer_spell(const text_tokenizer *tok, int32_t id, buffer *out);

/* The bytes of all tokens but special ones as a prefix tree, made at the first call (about 0.1 s for 200,000 tokens)
 * and shared; borrowed. NULL: no memory. */
const token_trie *text_tokenizer_trie(const text_tokenizer *tok);

/* Appends the text of `count` ids; bytes that are not UTF-8 become U+FFFD, one for each maximal broken part. Unknown
 * ids give nothing. HY_NO_FIT when there is no memory for it. */
hy_status text_decode(const text_tokenizer *tok, const int32_t *ids, size_t count, bool skip_special, buffer *out,
                      hy_error *err);

#endif
