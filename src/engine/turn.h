/*
 * Whose turn a backend's step is: engines that share a model also share its threads and scratch memory, and steps of
 * one backend run one after the other (backend/ops.h). One lock per open backend, found by its address.
 */
#ifndef HAYATE_ENGINE_TURN_H
#define HAYATE_ENGINE_TURN_H

#include "backend/ops.h"

typedef struct turn turn;

/* The lock of a backend, shared with everyone who opened it. NULL: no memory. */
turn *turn_open(const ops_backend *backend);
void turn_close(turn *t);
void turn_take(turn *t);
void turn_leave(turn *t);

#endif
