/* Logging to stderr, by topic. REPRISE_LOG is read once; a record is one write, so that lines of threads do not mix. */
#include "core/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/env.h"
#include "core/text.h"

static const char *const names[RP__LOG_TOPICS] = {
#define RP__LOG_NAME(id, name) [RP__LOG_##id] = name,
    RP__LOG_TABLE(RP__LOG_NAME)
#undef RP__LOG_NAME
};
static unsigned enabled;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void read_environment(void) {
    const char *list = rp__env("REPRISE_LOG");
    enabled = 1u << RP__LOG_ENVIRONMENT;
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
    if (n < 0) return;
    /* Lines of a compiler stay lines; nothing else may move a terminal's cursor. */
    char shown[4 * sizeof line + 8];
    size_t length = 0;
    for (char *p = line, *next; p && (*p || p == line); p = next) {
        next = strchr(p, '\n');
        if (next) *next++ = 0;
        rp__printable(shown + length, sizeof shown - length - 1, p);
        length += strlen(shown + length);
        shown[length++] = '\n';
    }
    fwrite(shown, 1, length, stderr);
}
