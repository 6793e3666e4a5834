/* Logging: off by default, switched on by REPRISE_LOG (a comma list of topics, or "all") to stderr. The library prints
   nothing else. One line a record: "reprise topic: text". */
#ifndef RP_CORE_LOG_H
#define RP_CORE_LOG_H

#include "core/error.h"

typedef enum rp__log_topic {
    RP__LOG_DEVICE,
    RP__LOG_ALLOC,
    RP__LOG_KERNEL,
    RP__LOG_CACHE,
    RP__LOG_TRACE,
    RP__LOG_GUARDS,
    RP__LOG_COMPILE,
    RP__LOG_FUSION,
    RP__LOG_GRAPHS,
    RP__LOG_TOPICS
} rp__log_topic;
bool rp__log_on(rp__log_topic topic);
void rp__log(rp__log_topic topic, const char *format, ...) RP__PRINTF(2, 3);

#endif
