/*
 * Running an automaton: where a text can be, as a set of places, and where it is after one more byte.
 *
 * A place is a state and a frame: what happens when the state's rule is over. Frames are shared, equal ones exist once,
 * so a recursion costs a frame a level. A position is a set of places that has been seen before under its number; the
 * way from a position over a byte is remembered, so that walking over many tokens costs a look-up a byte.
 *
 * Where a text is ambiguous enough to be in more than MACHINE_PLACES places, the last ones are dropped: what is allowed
 * then is less than all, and still right.
 */
#ifndef HAYATE_TEXT_GRAMMAR_MACHINE_H
#define HAYATE_TEXT_GRAMMAR_MACHINE_H

#include "text/grammar_automaton.h"

enum {
    MACHINE_PLACES = 1024, /* of a position */
    MACHINE_BOTTOM = 0,    /* the frame under all others */
};

typedef struct machine_frame {
    int32_t ret;    /* the state to go on with; below 0: ~counted rule, whose body has been seen `count` times */
    int32_t count;  /* endless ones: at most `min` */
    int32_t parent; /* frame */
} machine_frame;

typedef struct machine_place {
    int32_t state, frame;
} machine_place;

typedef struct machine_position {
    uint32_t begin;    /* of its places */
    int32_t own, all;  /* places: those where the text can go on; and with the starts of the rules that these call */
    bool over;         /* the bottom was reached: the text may end here */
    int32_t low, high; /* relative machines: bodies that were complete when it was, the fewest and the most */
    int32_t bodies;    /* relative machines: bodies that a token needs which ends here */
} machine_position;

typedef struct machine {
    const automaton *a;
    bool relative; /* counts of frames on the bottom begin at 0 and have no bounds */
    bool failed;   /* no memory */
    machine_frame *frame;
    size_t frames, frame_capacity, kept_frames; /* kept: the last time that it was tidied */
    machine_position *position;
    size_t positions, position_capacity;
    machine_place *place;
    size_t places, place_capacity;
    int32_t *next; /* [positions, classes] MACHINE_UNKNOWN, -1: nowhere */
    size_t next_capacity;
    int32_t *frame_slot, *position_slot; /* hash tables, -1: free */
    size_t frame_slots, position_slots;
    machine_place *list; /* the position that is being made */
    size_t list_capacity;
} machine;

/* False: no memory; close it all the same. */
bool machine_open(machine *m, const automaton *a, bool relative);
void machine_close(machine *m);
/* Forgets everything. */
void machine_reset(machine *m);

/* A frame, and the positions at a state over one; behind a rule that is over. -1: nowhere, or no memory. */
int32_t machine_frame_of(machine *m, int32_t ret, int32_t count, int32_t parent);
int32_t machine_at(machine *m, int32_t state, int32_t frame);
int32_t machine_after(machine *m, int32_t frame);

int32_t machine_step_slow(machine *m, int32_t position, int class);
enum { MACHINE_UNKNOWN = -2 };
static inline int32_t machine_step(machine *m, int32_t position, uint8_t byte)
{
    int class = m->a->class_of[byte];
    int32_t to = m->next[(size_t)position * (size_t)m->a->classes + (size_t) class];
    return to != MACHINE_UNKNOWN ? to : machine_step_slow(m, position, class);
}
int32_t machine_walk(machine *m, int32_t position, const char *bytes, size_t length);

/* When much has been remembered: forgets all but this position, whose number changes to the one returned. */
int32_t machine_tidy(machine *m, int32_t position);

#endif
