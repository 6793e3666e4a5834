/* Logging to stderr, by topic. REPRISE_LOG is read once; a record is one write, so that lines of threads do not mix. */
#include "core/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[RP__LOG_TOPICS] = {
    [RP__LOG_DEVICE] = "device",   [RP__LOG_ALLOC] = "alloc",   [RP__LOG_KERNEL] = "kernel",
    [RP__LOG_CACHE] = "cache",     [RP__LOG_TRACE] = "trace",   [RP__LOG_GUARDS] = "guards",
    [RP__LOG_COMPILE] = "compile", [RP__LOG_FUSION] = "fusion", [RP__LOG_GRAPHS] = "graphs",
};
static unsigned enabled;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void read_environment(void) {
    const char *list = getenv("REPRISE_LOG");
    while (list && *list) {
        size_t n = strcspn(list, ",");
        for (unsigned topic = 0; topic < RP__LOG_TOPICS; topic++) {
            if ((n == 3 && strncmp(list, "all", 3) == 0) ||
                (strlen(names[topic]) == n && strncmp(list, names[topic], n) == 0))
                enabled |= 1u << topic;
        }
        list += n + (list[n] == ',');
    }
}

bool rp__log_on(rp__log_topic topic) {
    pthread_once(&once, read_environment);
    return (enabled >> topic & 1) != 0;
}

void rp__log(rp__log_topic topic, const char *format, ...) {
    if (!rp__log_on(topic)) return;
    char line[1024];
    int used = snprintf(line, sizeof line, "reprise %s: ", names[topic]);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    va_end(args);
    size_t length = strlen(line);
    if (n < 0) return;
    line[length++] = '\n';
    fwrite(line, 1, length, stderr);
}
