/* What the system says of this process, under the names of Prometheus' client libraries. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "server/metrics_parts.h"

/* Fields of /proc/self/stat behind the name, which may hold anything: the first is the third of the file. */
static bool read_stat(unsigned long long field[50])
{
    char text[2048];
    FILE *f = fopen("/proc/self/stat", "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    char *at = strrchr(text, ')');
    if (!at || at[1] != ' ' || !at[2]) return false;
    at += 3; /* behind the state */
    for (int i = 4; i < 25; i++) {
        char *end;
        field[i] = strtoull(at, &end, 10); /* negative ones, which nobody asks for, wrap around */
        if (end == at) return false;
        at = end;
    }
    return true;
}

/* When the system started, seconds since 1970. */
static double boot_time(void)
{
    char text[256];
    double seconds = 0;
    FILE *f = fopen("/proc/stat", "r");
    while (f && seconds == 0 && fgets(text, sizeof text, f))
        if (strncmp(text, "btime ", 6) == 0) seconds = strtod(text + 6, NULL);
    if (f) fclose(f);
    return seconds;
}

static int open_files(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    if (!d) return -1;
    while (readdir(d)) n++;
    closedir(d);
    return n - 3; /* ., .. and the one that lists them */
}

void metrics_process(exposition *e)
{
    unsigned long long field[50];
    struct rlimit limit;
    double tick = (double)sysconf(_SC_CLK_TCK), page = (double)sysconf(_SC_PAGESIZE), boot = boot_time();
    if (read_stat(field)) {
        exposition_family(e, EXPOSITION_GAUGE, "process_virtual_memory_bytes",
                          "Address space of the process in bytes.");
        exposition_sample(e, (double)field[23], NULL);
        exposition_family(e, EXPOSITION_GAUGE, "process_resident_memory_bytes", "Memory of the process in bytes.");
        exposition_sample(e, (double)field[24] * page, NULL);
        exposition_family(e, EXPOSITION_GAUGE, "process_start_time_seconds", "Start of the process since 1970.");
        exposition_sample(e, boot + (double)field[22] / tick, NULL);
        exposition_family(e, EXPOSITION_COUNTER, "process_cpu_seconds", "User and system time that was spent.");
        exposition_sample(e, (double)(field[14] + field[15]) / tick, NULL);
    }
    int files = open_files();
    exposition_family(e, EXPOSITION_GAUGE, "process_open_fds", "Open file descriptors.");
    if (files >= 0) exposition_sample(e, files, NULL);
    exposition_family(e, EXPOSITION_GAUGE, "process_max_fds", "Most file descriptors that may be open.");
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) exposition_sample(e, (double)limit.rlim_cur, NULL);
}
