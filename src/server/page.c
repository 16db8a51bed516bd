#include "server/page.h"

#include <assert.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

/* The file as it is, between two symbols. A NUL follows, so that it can be searched as a string. */
__asm__(".section .rodata\n"
        "hayate_page:\n"
        ".incbin \"" HAYATE_PAGE "\"\n"
        "hayate_page_end:\n"
        ".byte 0\n"
        ".previous\n");
extern const char hayate_page[] __attribute__((visibility("hidden")));
extern const char hayate_page_end[] __attribute__((visibility("hidden")));

enum { HASH = 32, HASH_TEXT = 48 };

/* The hash of what is between two marks, as policies spell it. */
static void hash_part(const char *open, const char *close, char out[HASH_TEXT])
{
    unsigned char hash[HASH];
    const char *begin = strstr(hayate_page, open), *end = begin ? strstr(begin, close) : NULL;
    assert(begin && end);
    begin += strlen(open);
    int done = EVP_Digest(begin, (size_t)(end - begin), hash, NULL, EVP_sha256(), NULL);
    assert(done == 1);
    EVP_EncodeBlock((unsigned char *)out, hash, HASH);
}

void page_policy_make(page_policy *policy)
{
    char script[HASH_TEXT], style[HASH_TEXT];
    hash_part("<script>", "</script>", script);
    hash_part("<style>", "</style>", style);
    snprintf(policy->text, sizeof policy->text,
             "default-src 'none'; script-src 'sha256-%s'; style-src 'sha256-%s'; connect-src 'self'; img-src data:; "
             "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
             script, style);
}

void page_handle(void *user, http_exchange *x)
{
    const page_policy *policy = user;
    http_reply_header(x, "Content-Security-Policy", policy->text);
    http_reply_header(x, "X-Content-Type-Options", "nosniff");
    http_reply_header(x, "Referrer-Policy", "no-referrer");
    http_reply_header(x, "Cache-Control", "no-cache");
    http_reply(x, 200, "text/html; charset=utf-8", hayate_page, (size_t)(hayate_page_end - hayate_page));
}
