/* Log lines of the library. The process sets the sink with hy_log_set (include/hayate.h); without one nothing is made.
 */
#ifndef HAYATE_BASE_LOG_H
#define HAYATE_BASE_LOG_H

#include "hayate.h"

/* One line, printf form, no newline. Cheap when the level is off. */
void log_line(hy_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Whether lines of this level are made, for who has work to make one. */
bool log_wants(hy_log_level level);

#endif
