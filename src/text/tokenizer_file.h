/* Reading the two kinds of vocabulary file into a vocabulary (text/vocabulary.h). */
#ifndef HAYATE_TEXT_TOKENIZER_FILE_H
#define HAYATE_TEXT_TOKENIZER_FILE_H

#include "text/vocabulary.h"

/* A tokenizer.json. HY_BAD_MODEL names the field at fault. On failure *v may be partly filled: free it. */
hy_status tokenizer_file_json(const char *data, size_t size, const char *what, vocabulary *v, hy_error *err);

/* Lines "base64 rank". 200,000 ranks are MiniMax-M3's and get its added tokens. */
hy_status tokenizer_file_ranks(const char *data, size_t size, const char *what, vocabulary *v, hy_error *err);

/* The GPT-2 byte alphabet: a printable character for each byte. The code point of a byte, and back (-1: none). */
uint32_t tokenizer_file_letter(unsigned char byte);
int tokenizer_file_byte(uint32_t code);

#endif
