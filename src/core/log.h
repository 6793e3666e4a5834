/* Logging: off by default, switched on by REPRISE_LOG (a comma list of topics, or "all") to stderr. One line a record: "reprise
   topic: text", with control bytes escaped. Of the topic environment, which has one line a variable of ours that is not
   understood, records are always written. The library prints nothing else, but for what REPRISE_EXPLAIN asks for. */
#ifndef RP_CORE_LOG_H
#define RP_CORE_LOG_H

#include "core/error.h"

#define RP__LOG_TABLE(X)                                                                                               \
    X(DEVICE, "device")                                                                                                \
    X(ALLOC, "alloc")                                                                                                  \
    X(KERNEL, "kernel")                                                                                                \
    X(CACHE, "cache")                                                                                                  \
    X(TRACE, "trace")                                                                                                  \
    X(GUARDS, "guards")                                                                                                \
    X(COMPILE, "compile")                                                                                              \
    X(FUSION, "fusion")                                                                                                \
    X(GRAPHS, "graphs")                                                                                                \
    X(SCOPE, "scope")                                                                                                  \
    X(ADVICE, "advice")                                                                                                \
    X(ENVIRONMENT, "environment")
#define RP__LOG_NAMES "device, alloc, kernel, cache, trace, guards, compile, fusion, graphs, scope, advice, environment"

typedef enum rp__log_topic {
#define RP__LOG_TOPIC(id, name) RP__LOG_##id,
    RP__LOG_TABLE(RP__LOG_TOPIC)
#undef RP__LOG_TOPIC
        RP__LOG_TOPICS
} rp__log_topic;
bool rp__log_on(rp__log_topic topic);
void rp__log(rp__log_topic topic, const char *format, ...) RP__PRINTF(2, 3);

#endif
