#include "text/grammar_machine.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { SLOTS = 256, KEEP_POSITIONS = 1024, KEEP_PLACES = 1 << 16, KEEP_FRAMES = 1 << 15 };

/* ---- Memory --------------------------------------------------------------------------------------------------- */

static bool clear_slots(int32_t **slot, size_t *slots, size_t count)
{
    if (!*slot || *slots != count) {
        free(*slot);
        *slot = malloc(count * sizeof **slot);
        *slots = *slot ? count : 0;
    }
    if (*slot) memset(*slot, 0xFF, count * sizeof **slot);
    return *slot != NULL;
}

void machine_reset(machine *m)
{
    m->frames = 1; /* the bottom */
    m->positions = m->places = 0;
    if (!clear_slots(&m->frame_slot, &m->frame_slots, SLOTS) ||
        !clear_slots(&m->position_slot, &m->position_slots, SLOTS))
        m->failed = true;
}

bool machine_open(machine *m, const automaton *a, bool relative)
{
    *m = (machine){.a = a, .relative = relative};
    if (!memory_reserve((void **)&m->frame, &m->frame_capacity, 16, sizeof *m->frame)) return false;
    m->frame[MACHINE_BOTTOM] = (machine_frame){.parent = -1};
    machine_reset(m);
    return !m->failed;
}

void machine_close(machine *m)
{
    free(m->frame);
    free(m->position);
    free(m->place);
    free(m->next);
    free(m->frame_slot);
    free(m->position_slot);
    free(m->list);
    *m = (machine){0};
}

/* ---- Frames --------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, uint32_t x)
{
    h = (h ^ x) * 0xD6E8FEB86659FD93u;
    return h ^ h >> 32;
}

static size_t frame_hash(const machine_frame *f)
{
    return (size_t)mix(mix(mix(0x9E3779B97F4A7C15u, (uint32_t)f->ret), (uint32_t)f->count), (uint32_t)f->parent);
}

static void put_frame(machine *m, int32_t id)
{
    size_t at = frame_hash(&m->frame[id]);
    while (m->frame_slot[at & (m->frame_slots - 1)] >= 0) at++;
    m->frame_slot[at & (m->frame_slots - 1)] = id;
}

static bool index_frames(machine *m, size_t slots)
{
    if (!clear_slots(&m->frame_slot, &m->frame_slots, slots)) return false;
    for (size_t i = 1; i < m->frames; i++) put_frame(m, (int32_t)i);
    return true;
}

int32_t machine_frame_of(machine *m, int32_t ret, int32_t count, int32_t parent)
{
    machine_frame f = {ret, count, parent};
    if (m->failed) return MACHINE_BOTTOM;
    for (size_t at = frame_hash(&f);; at++) {
        int32_t have = m->frame_slot[at & (m->frame_slots - 1)];
        if (have < 0) break;
        const machine_frame *h = &m->frame[have];
        if (h->ret == ret && h->count == count && h->parent == parent) return have;
    }
    if (!memory_reserve((void **)&m->frame, &m->frame_capacity, m->frames + 1, sizeof *m->frame) ||
        (m->frames * 2 >= m->frame_slots && !index_frames(m, m->frame_slots * 2))) {
        m->failed = true;
        return MACHINE_BOTTOM;
    }
    m->frame[m->frames] = f;
    put_frame(m, (int32_t)m->frames);
    return (int32_t)m->frames++;
}

/* ---- Making a position ---------------------------------------------------------------------------------------- */

typedef struct making {
    machine *m;
    int32_t count;
    bool over;
    int32_t low, high;
} making;

static void add_place(making *k, int32_t state, int32_t frame)
{
    machine *m = k->m;
    if (m->failed || k->count == MACHINE_PLACES) return;
    for (int32_t i = 0; i < k->count; i++)
        if (m->list[i].state == state && m->list[i].frame == frame) return;
    if (!memory_reserve((void **)&m->list, &m->list_capacity, (size_t)k->count + 1, sizeof *m->list)) {
        m->failed = true;
        return;
    }
    m->list[k->count++] = (machine_place){state, frame};
}

static void reach_bottom(making *k, int32_t bodies)
{
    if (!k->over || bodies < k->low) k->low = bodies;
    if (!k->over || bodies > k->high) k->high = bodies;
    k->over = true;
}

/* A body is complete: another one may begin, and where that were enough the repetition is over. Returns whether it is.
 */
static bool count_body(making *k, const machine_frame *f)
{
    machine *m = k->m;
    const automaton_rule *rule = &m->a->rule[~f->ret];
    bool free_count = m->relative && f->parent == MACHINE_BOTTOM, endless = rule->max == BUILD_ENDLESS;
    int32_t count = f->count + 1;
    if (!free_count && endless && count > rule->min) count = rule->min;
    if (free_count || endless || count < rule->max)
        add_place(k, rule->start, machine_frame_of(m, f->ret, count, f->parent));
    if (free_count) {
        reach_bottom(k, count);
        return false;
    }
    return count >= rule->min;
}

/* A rule is over: on to where its frame says. */
static void leave(making *k, int32_t frame)
{
    while (!k->m->failed) {
        if (frame == MACHINE_BOTTOM) {
            reach_bottom(k, 0);
            return;
        }
        machine_frame f = k->m->frame[frame]; /* a copy: frames move when there are more */
        if (f.ret >= 0) {
            add_place(k, f.ret, f.parent);
            return;
        }
        if (!count_body(k, &f)) return;
        frame = f.parent;
    }
}

/* From the places that bytes or returns led to, to all: rules that may be over are left. Places where nothing can come
 * are dropped then. */
static int32_t complete_own(making *k)
{
    const uint8_t *flags = k->m->a->flags;
    machine_place *list = k->m->list;
    int32_t kept = 0;
    for (int32_t i = 0; i < k->count; i++) {
        if (flags[k->m->list[i].state] & STATE_ACCEPTS) leave(k, k->m->list[i].frame);
        list = k->m->list;
    }
    for (int32_t i = 0; i < k->count; i++)
        if (!(flags[list[i].state] & STATE_LAST)) list[kept++] = list[i];
    return k->count = kept;
}

static void call(making *k, machine_place from, const automaton_call *c)
{
    machine *m = k->m;
    const automaton_rule *rule = &m->a->rule[c->rule];
    int32_t frame = from.frame;
    if (!(m->a->flags[c->ret] & STATE_LAST)) frame = machine_frame_of(m, c->ret, 0, frame);
    if (rule->body >= 0) frame = machine_frame_of(m, ~c->rule, 0, frame);
    add_place(k, rule->start, frame);
}

static void complete_calls(making *k)
{
    const automaton *a = k->m->a;
    for (int32_t i = 0; i < k->count; i++) {
        machine_place from = k->m->list[i];
        for (uint32_t c = a->call_at[from.state]; c < a->call_at[from.state + 1]; c++) call(k, from, &a->call[c]);
    }
}

/* Bodies that the place needs: one more than are complete, unless the next has not begun. */
static int32_t bodies_of(const machine *m, machine_place p)
{
    int32_t frame = p.frame;
    bool direct = true;
    if (frame == MACHINE_BOTTOM) return 0;
    while (m->frame[frame].parent != MACHINE_BOTTOM) frame = m->frame[frame].parent, direct = false;
    const machine_frame *f = &m->frame[frame];
    if (f->ret >= 0) return 0;
    return f->count + !(direct && p.state == m->a->rule[~f->ret].start);
}

static int compare_places(const void *a, const void *b)
{
    const machine_place *x = a, *y = b;
    if (x->state != y->state) return x->state < y->state ? -1 : 1;
    return (x->frame > y->frame) - (x->frame < y->frame);
}

static size_t position_hash(const machine_place *p, int32_t own, const machine_position *as)
{
    uint64_t h = mix(mix(mix(0x9E3779B97F4A7C15u, as->over), (uint32_t)as->low), (uint32_t)as->high);
    for (int32_t i = 0; i < own; i++) h = mix(mix(h, (uint32_t)p[i].state), (uint32_t)p[i].frame);
    return (size_t)h;
}

static void put_position(machine *m, int32_t id)
{
    const machine_position *p = &m->position[id];
    size_t at = position_hash(m->place + p->begin, p->own, p);
    while (m->position_slot[at & (m->position_slots - 1)] >= 0) at++;
    m->position_slot[at & (m->position_slots - 1)] = id;
}

static bool index_positions(machine *m, size_t slots)
{
    if (!clear_slots(&m->position_slot, &m->position_slots, slots)) return false;
    for (size_t i = 0; i < m->positions; i++) put_position(m, (int32_t)i);
    return true;
}

static int32_t find_position(const machine *m, const machine_position *want)
{
    for (size_t at = position_hash(m->list, want->own, want);; at++) {
        int32_t have = m->position_slot[at & (m->position_slots - 1)];
        if (have < 0) return -1;
        const machine_position *p = &m->position[have];
        if (p->own == want->own && p->over == want->over && p->low == want->low && p->high == want->high &&
            (!p->own || memcmp(m->place + p->begin, m->list, (size_t)p->own * sizeof *m->list) == 0))
            return have;
    }
}

static bool reserve_position(machine *m, int32_t places)
{
    size_t classes = (size_t)m->a->classes;
    return memory_reserve((void **)&m->position, &m->position_capacity, m->positions + 1, sizeof *m->position) &&
           memory_reserve((void **)&m->place, &m->place_capacity, m->places + (size_t)places + 1, sizeof *m->place) &&
           memory_reserve((void **)&m->next, &m->next_capacity, (m->positions + 1) * classes, sizeof *m->next) &&
           (m->positions * 2 < m->position_slots || index_positions(m, m->position_slots * 2));
}

/* The number of what has been made. -1: nowhere. */
static int32_t finish(making *k)
{
    machine *m = k->m;
    machine_position p = {.own = complete_own(k), .over = k->over, .low = k->low, .high = k->high};
    if (m->failed || (!p.own && !p.over)) return -1;
    if (p.own > 1) qsort(m->list, (size_t)p.own, sizeof *m->list, compare_places);
    int32_t have = find_position(m, &p);
    if (have >= 0) return have;
    p.bodies = p.over ? p.low : INT32_MAX;
    for (int32_t i = 0; i < p.own && m->relative; i++) {
        int32_t bodies = bodies_of(m, m->list[i]);
        if (bodies < p.bodies) p.bodies = bodies;
    }
    complete_calls(k);
    p.all = k->count, p.begin = (uint32_t)m->places;
    if (m->failed || !reserve_position(m, p.all)) {
        m->failed = true;
        return -1;
    }
    if (p.all) memcpy(m->place + m->places, m->list, (size_t)p.all * sizeof *m->list);
    m->places += (size_t)p.all;
    m->position[m->positions] = p;
    int32_t *next = m->next + m->positions * (size_t)m->a->classes;
    for (int32_t c = 0; c < m->a->classes; c++) next[c] = MACHINE_UNKNOWN;
    put_position(m, (int32_t)m->positions);
    return (int32_t)m->positions++;
}

int32_t machine_at(machine *m, int32_t state, int32_t frame)
{
    making k = {.m = m};
    add_place(&k, state, frame);
    return finish(&k);
}

int32_t machine_after(machine *m, int32_t frame)
{
    making k = {.m = m};
    leave(&k, frame);
    return finish(&k);
}

int32_t machine_step_slow(machine *m, int32_t position, int class)
{
    making k = {.m = m};
    const automaton *a = m->a;
    for (int32_t i = 0; i < m->position[position].all; i++) {
        machine_place p = m->place[m->position[position].begin + (uint32_t)i];
        int32_t to = a->next[(size_t)p.state * (size_t)a->classes + (size_t) class];
        if (to >= 0) add_place(&k, to, p.frame);
    }
    int32_t to = finish(&k);
    if (!m->failed) m->next[(size_t)position * (size_t)a->classes + (size_t) class] = to;
    return to;
}

int32_t machine_walk(machine *m, int32_t position, const char *bytes, size_t length)
{
    for (size_t i = 0; i < length && position >= 0; i++) position = machine_step(m, position, (uint8_t)bytes[i]);
    return position;
}

/* ---- Tidying --------------------------------------------------------------------------------------------------- */

/* Parents have smaller numbers, so frames can move down in one pass. `to` [frames] is 0 for those that go. */
static void move_frames(machine *m, int32_t *to)
{
    size_t kept = 1;
    for (size_t i = m->frames; i-- > 1;)
        if (to[i]) to[m->frame[i].parent] = 1;
    to[MACHINE_BOTTOM] = MACHINE_BOTTOM;
    for (size_t i = 1; i < m->frames; i++) {
        if (!to[i]) continue;
        m->frame[kept] = m->frame[i];
        m->frame[kept].parent = m->frame[i].parent ? to[m->frame[i].parent] : MACHINE_BOTTOM;
        to[i] = (int32_t)kept++;
    }
    m->frames = m->kept_frames = kept;
}

int32_t machine_tidy(machine *m, int32_t position)
{
    if (m->positions < KEEP_POSITIONS && m->places < KEEP_PLACES && m->frames < KEEP_FRAMES + 2 * m->kept_frames)
        return position;
    int32_t *to = calloc(m->frames, sizeof *to);
    if (!to) return position; /* the next time, perhaps */
    making k = {.m = m};
    const machine_position old = m->position[position];
    for (int32_t i = 0; i < old.own; i++) {
        machine_place p = m->place[old.begin + (uint32_t)i];
        add_place(&k, p.state, p.frame);
        if (p.frame) to[p.frame] = 1;
    }
    move_frames(m, to);
    for (int32_t i = 0; i < k.count; i++) m->list[i].frame = to[m->list[i].frame];
    free(to);
    size_t slots = SLOTS;
    while (slots < m->frames * 4) slots *= 2;
    m->positions = m->places = 0;
    if (!index_frames(m, slots) || !clear_slots(&m->position_slot, &m->position_slots, SLOTS)) m->failed = true;
    k.over = old.over, k.low = old.low, k.high = old.high;
    return finish(&k);
}
