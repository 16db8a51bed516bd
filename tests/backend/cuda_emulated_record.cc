/* What gpu.h has for measuring, on the emulated GPU: times are the host's, and a record is a list of launches. */
#include "backend/cuda_emulated.h"
#include "backend/cuda_emulated.cuh"

#include <vector>

extern "C" {
#include "base/clock.h"
}

/* kernel NULL: mark number `block`. */
struct remembered {
    const gpu_kernel *kernel;
    const char *name;
    int grid[3], block;
    size_t shared;
    std::vector<char> args;
};

struct gpu_record {
    std::vector<remembered> list;
};

static double marks[GPU_MARKS];
static gpu_record *recording;
static const char *only;
static bool parted;

static int launches_of(const gpu_record *record)
{
    int count = 0;
    for (const remembered &r : record->list) count += r.kernel != nullptr;
    return count;
}

static void mark_next()
{
    int i = launches_of(recording);
    if (i < GPU_MARKS_APART) recording->list.push_back({nullptr, nullptr, {0, 0, 0}, i, 0, {}});
}

namespace emulated {

void remember(const gpu_kernel *kernel, const char *name, const int grid[3], int block, size_t shared, const void *args,
              size_t bytes)
{
    if (!recording || (only && !gpu_name_in(only, name))) return;
    const char *from = (const char *)args;
    if (parted) mark_next();
    recording->list.push_back({kernel, name, {grid[0], grid[1], grid[2]}, block, shared, {from, from + bytes}});
}

static void mark(gpu *, int i)
{
    marks[i] = clock_seconds();
    if (recording) recording->list.push_back({nullptr, nullptr, {0, 0, 0}, i, 0, {}});
}

static double between(gpu *, int from, int to)
{
    double seconds = marks[to] - marks[from];
    return seconds > 1e-9 ? seconds : 1e-9;
}

static void record(gpu *, const char *names, bool apart)
{
    recording = new gpu_record;
    parted = apart;
    only = names;
}

static gpu_record *recorded(gpu *, int *launches, bool *graph)
{
    if (parted) mark_next();
    gpu_record *done = recording;
    recording = nullptr;
    *launches = launches_of(done);
    *graph = false;
    return done;
}

static void replay(gpu *g, gpu_record *record)
{
    gpu_record *kept = recording; /* what runs again is not remembered again */
    recording = nullptr;
    for (remembered &r : record->list)
        if (r.kernel)
            g->calls->launch(g, r.kernel, r.grid, r.block, r.shared, r.args.data(), r.args.size());
        else
            mark(g, r.block);
    recording = kept;
}

static const char *launched(const gpu_record *record, int i)
{
    for (const remembered &r : record->list)
        if (r.kernel && i-- == 0) return r.name;
    return nullptr;
}

static void forget(gpu *, gpu_record *record)
{
    delete record;
}

static double link(gpu *g, void *device, size_t bytes)
{
    double begin = clock_seconds();
    g->calls->fill(g, device, 0, bytes);
    return clock_seconds() - begin + 1e-9;
}

void add_measuring(gpu_calls *calls)
{
    calls->mark = mark;
    calls->between = between;
    calls->record = record;
    calls->recorded = recorded;
    calls->replay = replay;
    calls->launched = launched;
    calls->forget = forget;
    calls->link = link;
}

} // namespace emulated
