/*
 * Weights from the host's memory or from files into the GPU's, many pieces at once.
 *
 * What is to go is listed and then goes all together: each thread of the pool has a lane of two pinned buffers (gpu.h),
 * into which it reads a piece of up to 4 MiB while the other one is on its way. Pieces of files are read from the
 * files, with direct reads where the pages are not in memory already, else through the page cache; other memory is
 * copied. So as many reads are under way as there are threads, and the link is never without the next piece.
 *
 * Bound: the slower of disk and link; through the page cache a thread copies 5 to 10 GB/s, a link of 16 lanes of the
 * fifth generation takes 55 GB/s.
 */
#ifndef HAYATE_BACKEND_CUDA_UPLOAD_H
#define HAYATE_BACKEND_CUDA_UPLOAD_H

#include "backend/cuda/gpu.h"
#include "backend/ops.h"
#include "base/clock.h"

typedef struct upload upload;

/* The pool and the files are options'; `report` is borrowed. HY_NO_FIT, HY_FAILED. */
hy_status upload_open(gpu *g, const ops_options *options, progress *report, upload **out, hy_error *err);
void upload_close(upload *u);
/* Lists `bytes` of the host's memory, borrowed until they have gone; `counts` of them are reported. HY_NO_FIT. */
hy_status upload_add(upload *u, void *device, const void *host, size_t bytes, hy_error *err);
/* All of the list goes; what is asked of the GPU next comes behind it. HY_FAILED: a file cannot be read. HY_CANCELLED.
 */
hy_status upload_run(upload *u, hy_error *err);
uint64_t upload_bytes(const upload *u);  /* that have gone */
const char *upload_way(const upload *u); /* "read directly", "read through the page cache", "copied" */

#endif
