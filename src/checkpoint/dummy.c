/*
 * A checkpoint of random weights that no file holds. They are made into a file of memory, in the published layout,
 * which is then opened as any other: whoever reads weights by their map, by their path or from a descriptor finds them
 * there.
 */
#define _GNU_SOURCE /* memfd_create */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "checkpoint/opened.h"
#include "checkpoint/synth.h"

/* Before a byte of them is made. */
static hy_status check_room(uint64_t bytes, int copies, hy_error *err)
{
    char size[32], need[32], has[32];
    uint64_t all, available = memory_available();
    if (__builtin_mul_overflow(bytes, (uint64_t)copies, &all)) all = UINT64_MAX;
    if (all <= available) return HY_OK;
    return error_at(err, HY_NO_FIT, "--load-format",
                    "--load-format dummy makes %s of random weights in memory%s: %s are needed and %s are free",
                    memory_text(bytes, size), copies > 1 ? ", and the backend prepares them into as much again" : "",
                    memory_text(all, need), memory_text(available, has));
}

/* `file` keeps the descriptor for the checkpoint to close, whatever comes of it. */
static hy_status make(const config *c, const draft_config *d, layout_scheme scheme, const dummy_options *o, int *file,
                      shards *out, hy_error *err)
{
    static const struct timespec never[2]; /* the same weights are the same file, in keys of caches too */
    synth_options how = {.scheme = scheme, .seed = o->seed, .on_progress = o->on_progress, .user = o->user};
    char path[32];
    int fd = memfd_create("weights", MFD_CLOEXEC);
    if (fd < 0) return error_set(err, HY_FAILED, "cannot make a file of memory for weights: %s", strerror(errno));
    *file = fd + 1;
    hy_status status = synth_file(c, d, fd, "random weights", &how, err);
    if (status != HY_OK) return status;
    if (futimens(fd, never) != 0) return error_set(err, HY_FAILED, "cannot date a file of memory: %s", strerror(errno));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return shards_open_files(&(char *){path}, 1, NULL, out, err);
}

hy_status checkpoint_open_dummy(const char *path, const dummy_options *o, checkpoint **out, hy_error *err)
{
    char file[SOURCE_PATH + 16];
    checkpoint *c = calloc(1, sizeof *c);
    if (!c) return error_memory(err, path, sizeof *c);
    hy_status status = source_open(path, &c->source, err);
    if (status == HY_OK) status = file_join(c->source.folder, "config.json", file, sizeof file, err);
    if (status == HY_OK) status = config_load(file, &c->config, err);
    layout_scheme scheme = layout_scheme_of(&c->config);
    if (status == HY_OK) status = layout_check(&c->config, scheme, err);
    if (status == HY_OK) status = check_room(layout_count(&c->config, scheme).bytes, o->copies, err);
    if (status == HY_OK) status = make(&c->config, NULL, scheme, o, &c->memory, &c->main, err);
    if (status != HY_OK) {
        checkpoint_close(c);
        return status;
    }
    c->prefix = naming_prefix(&c->main);
    *out = c;
    return HY_OK;
}

hy_status checkpoint_open_dummy_draft(checkpoint *c, const char *folder, const dummy_options *o, hy_error *err)
{
    draft_config d;
    hy_status status = draft_find_config(c, folder ? folder : c->source.folder, c->draft_folder, &d, err);
    if (status == HY_OK) status = check_room(layout_count_draft(&c->config, &d).bytes, o->copies, err);
    if (status == HY_OK)
        status = make(&c->config, &d, layout_scheme_of(&c->config), o, &c->draft_memory, &c->drafter, err);
    if (status == HY_OK) c->draft = d, c->has_draft = true;
    return status;
}
