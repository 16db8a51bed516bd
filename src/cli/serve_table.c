#include "cli/serve_table.h"

#include <assert.h>
#include <string.h>

#include "cli/cli.h"

static const arg_group_spec groups[GROUP_COUNT] = {
    [GROUP_OPTIONS] = {"options", "the command itself"},
    [GROUP_FRONTEND] = {"Frontend", "addresses, keys, answers, parsers, TLS, logs"},
    [GROUP_HAYATE] = {"Hayate", "what this program has and `vllm serve` has not"},
    [GROUP_MODEL] = {"ModelConfig", "which model, its names, lengths and defaults"},
    [GROUP_LOAD] = {"LoadConfig", "where weights come from"},
    [GROUP_ATTENTION] = {"AttentionConfig", "attention backends"},
    [GROUP_STRUCTURED] = {"StructuredOutputsConfig", "reasoning and structured output"},
    [GROUP_CACHE] = {"CacheConfig", "format, size and reuse of the cache"},
    [GROUP_OFFLOAD] = {"OffloadConfig", "weights outside a GPU's memory"},
    [GROUP_SCHEDULER] = {"SchedulerConfig", "how requests share steps"},
    [GROUP_PARALLEL] = {"ParallelConfig", "ranks and nodes"},
    [GROUP_MULTIMODAL] = {"MultiModalConfig", "images and videos"},
    [GROUP_LORA] = {"LoRAConfig", "adapters"},
    [GROUP_OBSERVABILITY] = {"ObservabilityConfig", "metrics and traces"},
    [GROUP_COMPILATION] = {"CompilationConfig", "captured graphs"},
    [GROUP_KERNEL] = {"KernelConfig", "choice of kernels"},
    [GROUP_MAMBA] = {"MambaConfig", "state-space layers"},
    [GROUP_VLLM] = {"VllmConfig", "JSON configurations as a whole"},
};

const arg_spec *serve_table(size_t *count)
{
    static arg_spec all[SERVE_TABLE_MAX];
    static size_t n;
    if (n == 0) {
        assert(serve_front_count <= SERVE_FRONT_MAX && serve_engine_count <= SERVE_ENGINE_MAX);
        memcpy(all, serve_front, serve_front_count * sizeof *all);
        memcpy(all + serve_front_count, serve_engine, serve_engine_count * sizeof *all);
        n = serve_front_count + serve_engine_count;
    }
    *count = n;
    return all;
}

const arg_group_spec *serve_group(arg_group group)
{
    return &groups[group];
}

/* Whether text[0..length) is `name` with _ for -. */
static bool same_name(const char *text, size_t length, const char *name)
{
    if (strlen(name) != length) return false;
    for (size_t i = 0; i < length; i++)
        if ((text[i] == '_' ? '-' : text[i]) != name[i]) return false;
    return true;
}

const arg_spec *serve_find(const char *name, size_t length)
{
    size_t count;
    const arg_spec *all = serve_table(&count);
    for (size_t i = 0; i < count; i++)
        if (same_name(name, length, all[i].name)) return &all[i];
    return NULL;
}

const arg_spec *serve_find_letters(const char *letters, size_t length)
{
    size_t count;
    const arg_spec *all = serve_table(&count);
    for (size_t i = 0; i < count; i++)
        if (all[i].letters[0] && strlen(all[i].letters) == length && !strncmp(all[i].letters, letters, length))
            return &all[i];
    return NULL;
}

const char *serve_nearest(const char *name)
{
    size_t count, n = strlen(name);
    const arg_spec *all = serve_table(&count);
    const char *best = NULL;
    int least = (int)n / 3 + 2; /* farther names are no help */
    for (size_t i = 0; i < count; i++) {
        /* What was only begun is nearer than any slip of the finger. */
        int d = n >= 4 && !strncmp(all[i].name, name, n) ? 0 : cli_edit_distance(name, all[i].name);
        if (d < least) least = d, best = all[i].name;
    }
    return best;
}
