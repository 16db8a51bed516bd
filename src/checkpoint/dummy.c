/*
 * A checkpoint of random weights that no file holds. They are made into a file of memory, in the published layout,
 * which is then opened as any other: whoever reads weights by their map, by their path or from a descriptor finds them
 * there. Where the backend makes weights in its own memory, large matrices are holes of that file, whose addresses name
 * them (checkpoint/synth_made.h).
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

static synth_options options_of(const dummy_options *o, layout_scheme scheme)
{
    return (synth_options){
        .scheme = scheme, .seed = o->seed, .holes = o->elsewhere, .on_progress = o->on_progress, .user = o->user};
}

/* `file` keeps the descriptor for the checkpoint to close, whatever comes of it. */
static hy_status make(const config *c, const draft_config *d, const synth_options *how, int *file, shards *out,
                      hy_error *err)
{
    static const struct timespec never[2]; /* the same weights are the same file, in keys of caches too */
    char path[32];
    int fd = memfd_create("weights", MFD_CLOEXEC);
    if (fd < 0) return error_set(err, HY_FAILED, "cannot make a file of memory for weights: %s", strerror(errno));
    *file = fd + 1;
    hy_status status = synth_file(c, d, fd, "random weights", how, err);
    if (status != HY_OK) return status;
    if (futimens(fd, never) != 0) return error_set(err, HY_FAILED, "cannot date a file of memory: %s", strerror(errno));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return shards_open_files(&(char *){path}, 1, NULL, out, err);
}

static hy_status list_made(checkpoint *c, const draft_config *d, const synth_options *how, const shards *files,
                           hy_error *err)
{
    if (!how->holes) return HY_OK;
    c->elsewhere = true, c->seed = how->seed;
    return synth_made_add(&c->made, &c->config, d, how, files->tensors, files->count, err);
}

/* The config, and the scheme that weights of it have. */
static hy_status find_config(checkpoint *c, const char *path, layout_scheme *scheme, hy_error *err)
{
    char file[SOURCE_PATH + 16];
    c->known = !file_present(path) && config_known(path, &c->config);
    if (c->known) {
        snprintf(c->source.folder, sizeof c->source.folder, "%s", path);
        *scheme = layout_known_scheme(path);
        return HY_OK;
    }
    hy_status status = source_open(path, &c->source, err);
    if (status == HY_OK) status = file_join(c->source.folder, "config.json", file, sizeof file, err);
    if (status == HY_OK) status = config_load(file, &c->config, err);
    if (status == HY_OK) *scheme = layout_scheme_of(&c->config);
    return status;
}

static hy_status slice(config *c, const dummy_options *o, hy_error *err)
{
    int dense = o->with_experts > 0 ? o->layers - o->with_experts : -1;
    if (o->layers < 0 || o->with_experts < 0 || o->with_experts > o->layers)
        return error_at(err, HY_USAGE, "--layers", "%d layers, of them %d with experts, are not possible", o->layers,
                        o->with_experts);
    return o->layers ? config_slice(c, o->layers, dense, err) : HY_OK;
}

hy_status checkpoint_open_dummy(const char *path, const dummy_options *o, checkpoint **out, hy_error *err)
{
    layout_scheme scheme = SCHEME_BF16;
    checkpoint *c = calloc(1, sizeof *c);
    if (!c) return error_memory(err, path, sizeof *c);
    hy_status status = find_config(c, path, &scheme, err);
    if (status == HY_OK) status = slice(&c->config, o, err);
    if (status == HY_OK) status = layout_check(&c->config, scheme, err);
    if (status == HY_OK && !o->elsewhere) status = check_room(layout_count(&c->config, scheme).bytes, o->copies, err);
    synth_options how = options_of(o, scheme);
    if (status == HY_OK) status = make(&c->config, NULL, &how, &c->memory, &c->main, err);
    if (status == HY_OK) status = list_made(c, NULL, &how, &c->main, err);
    if (status != HY_OK) {
        checkpoint_close(c);
        return status;
    }
    c->scheme = scheme;
    c->prefix = naming_prefix(&c->main);
    *out = c;
    return HY_OK;
}

hy_status checkpoint_open_dummy_draft(checkpoint *c, const char *folder, const dummy_options *o, hy_error *err)
{
    draft_config d;
    hy_status status = HY_OK;
    if (c->known && !folder) {
        d = config_drafter(&c->config);
        snprintf(c->draft_folder, sizeof c->draft_folder, "%.4000s/dspark", c->source.folder);
    } else {
        status = draft_find_config(c, folder ? folder : c->source.folder, c->draft_folder, &d, err);
    }
    if (status == HY_OK && !o->elsewhere) status = check_room(layout_count_draft(&c->config, &d).bytes, o->copies, err);
    synth_options how = options_of(o, c->scheme);
    if (status == HY_OK) status = make(&c->config, &d, &how, &c->draft_memory, &c->drafter, err);
    if (status == HY_OK) status = list_made(c, &d, &how, &c->drafter, err);
    if (status == HY_OK) c->draft = d, c->has_draft = true;
    return status;
}
