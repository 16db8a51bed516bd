#include "cli/line.h"

#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "base/error.h"
#include "base/memory.h"

enum { HISTORY_LINES = 1000 };

struct line_reader {
    EditLine *edit; /* NULL: not a terminal */
    History *history;
    char *file;
    const char *prompt;
    bool dropped; /* Ctrl-C ended the line */
    char *plain;  /* getline's, when there is no terminal */
    size_t plain_size;
};

static char *prompt_of(EditLine *edit)
{
    line_reader *r = NULL;
    el_get(edit, EL_CLIENTDATA, &r);
    return (char *)r->prompt;
}

/* Ctrl-C arrives as a character, since signals are off while a line is edited. */
static unsigned char drop_line(EditLine *edit, wint_t key)
{
    line_reader *r = NULL;
    (void)key;
    el_get(edit, EL_CLIENTDATA, &r);
    r->dropped = true;
    return CC_NEWLINE;
}

/* Characters need a UTF-8 locale; without one in the environment the C library's own. Numbers stay as they are. */
static void use_utf8(void)
{
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
}

static bool start_editing(line_reader *r)
{
    HistEvent event;
    use_utf8();
    r->edit = el_init("hayate", stdin, stdout, stderr);
    r->history = history_init();
    if (!r->edit || !r->history) return false;
    history(r->history, &event, H_SETSIZE, HISTORY_LINES);
    history(r->history, &event, H_SETUNIQUE, 1);
    if (r->file) history(r->history, &event, H_LOAD, r->file);
    el_set(r->edit, EL_CLIENTDATA, r);
    el_set(r->edit, EL_PROMPT, prompt_of);
    el_set(r->edit, EL_EDITOR, "emacs");
    el_set(r->edit, EL_HIST, history, r->history);
    el_set(r->edit, EL_SETTY, "-d", "-isig", NULL);
    el_wset(r->edit, EL_ADDFN, L"drop-line", L"Leave this line", drop_line); /* the narrow form loses its copies */
    el_set(r->edit, EL_BIND, "^C", "drop-line", NULL);
    el_set(r->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(r->edit, EL_BIND, "\\e[1~", "ed-move-to-beg", NULL);
    el_set(r->edit, EL_BIND, "\\e[4~", "ed-move-to-end", NULL);
    el_set(r->edit, EL_BIND, "\\e[3~", "ed-delete-next-char", NULL);
    return true;
}

hy_status line_open(const char *history_file, line_reader **out, hy_error *err)
{
    line_reader *r = memory_zeroed(1, sizeof *r);
    if (!r) return error_memory(err, "the line reader", sizeof *r);
    if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) {
        r->file = history_file ? strdup(history_file) : NULL;
        if (!start_editing(r)) {
            line_close(r);
            return error_set(err, HY_FAILED, "line editing could not be started on this terminal (TERM is unknown?)");
        }
    }
    *out = r;
    return HY_OK;
}

void line_close(line_reader *r)
{
    if (!r) return;
    HistEvent event;
    if (r->history && r->file) history(r->history, &event, H_SAVE, r->file);
    if (r->edit) el_end(r->edit);
    if (r->history) history_end(r->history);
    free(r->file);
    free(r->plain);
    memory_free(r);
}

bool line_is_terminal(const line_reader *r)
{
    return r->edit != NULL;
}

/* One line with its newline, borrowed; NULL at the end. */
static const char *next_line(line_reader *r, size_t *length)
{
    if (r->edit) {
        int count = 0;
        r->dropped = false;
        const char *line = el_gets(r->edit, &count);
        *length = count > 0 ? (size_t)count : 0;
        return line && count > 0 ? line : NULL;
    }
    ssize_t n = getline(&r->plain, &r->plain_size, stdin);
    *length = n > 0 ? (size_t)n : 0;
    return n > 0 ? r->plain : NULL;
}

static bool more_is_there(const line_reader *r)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    return r->edit && poll(&in, 1, 10) > 0 && (in.revents & POLLIN);
}

line_result line_read(line_reader *r, const char *prompt, buffer *text)
{
    r->prompt = prompt;
    buffer_clear(text);
    for (bool first = true;; first = false) {
        size_t length;
        const char *line = next_line(r, &length);
        if (r->edit && r->dropped) {
            printf("\n");
            return LINE_DROPPED;
        }
        if (!line && first) return LINE_END;
        if (!line) break;
        bool newline = line[length - 1] == '\n';
        if (newline) length--;
        bool joined = newline && length > 0 && line[length - 1] == '\\';
        buffer_append(text, line, joined ? length - 1 : length);
        if (!joined && !(newline && more_is_there(r))) break;
        buffer_char(text, '\n');
        r->prompt = "";
    }
    HistEvent event;
    if (r->edit && text->length > 0) history(r->history, &event, H_ENTER, text->data);
    return LINE_TEXT;
}
