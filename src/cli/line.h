/*
 * Reading what a person types: with line editing and history on a terminal, plain lines otherwise.
 *
 * Several lines become one text when a line ends in a backslash, and on a terminal when they were pasted together: more
 * input is there before anyone could have typed it.
 */
#ifndef HAYATE_CLI_LINE_H
#define HAYATE_CLI_LINE_H

#include "base/buffer.h"
#include "hayate.h"

typedef struct line_reader line_reader;

/* Standard input and output. On a terminal lines are remembered in `history_file` (NULL: only in memory). */
hy_status line_open(const char *history_file, line_reader **out, hy_error *err);
/* Writes the history. */
void line_close(line_reader *r);

typedef enum line_result { LINE_TEXT, LINE_DROPPED, LINE_END } line_result;

/* Shows the prompt (on a terminal) and replaces `text`. LINE_DROPPED: Ctrl-C; LINE_END: Ctrl-D or the end of the input.
 */
line_result line_read(line_reader *r, const char *prompt, buffer *text);

bool line_is_terminal(const line_reader *r);

#endif
