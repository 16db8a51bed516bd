/*
 * config.json of target and drafter: any text. What is accepted must survive being written and read again, and must
 * give a drafter and slices.
 */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/config.h"
#include "checkpoint/layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_target(const config *c)
{
    size_t length;
    config back;
    hy_error err = {0};
    char *text = config_write(c, SCHEME_BF16, &length);
    if (!text || config_parse("again", text, length, &back, &err) != HY_OK) abort();
    if (back.layers != c->layers || memcmp(back.sparse, c->sparse, sizeof c->sparse) != 0 ||
        memcmp(back.moe, c->moe, sizeof c->moe) != 0 || back.hidden != c->hidden || back.rope_theta != c->rope_theta)
        abort();
    free(text);
    back = *c;
    if (config_slice(&back, (c->layers + 1) / 2, -1, &err) != HY_OK) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    config c;
    draft_config d, back;
    hy_error err = {0};
    hy_status status = config_parse("fuzz/config.json", (const char *)data, size, &c, &err);
    if (status == HY_OK)
        check_target(&c);
    else if (status != HY_BAD_MODEL || !err.message[0] || strchr(err.message, '\n'))
        abort();
    status = draft_config_parse("fuzz/config.json", (const char *)data, size, &d, &err);
    if (status == HY_OK) {
        size_t length;
        char *text = draft_config_write(&d, &length);
        if (!text || draft_config_parse("again", text, length, &back, &err) != HY_OK) abort();
        if (memcmp(back.taps, d.taps, sizeof d.taps) != 0 || back.hidden != d.hidden) abort();
        free(text);
    } else if (status != HY_BAD_MODEL || !err.message[0]) {
        abort();
    }
    return 0;
}
