/* SLOW_BUILD: a build in which sanitizers make everything some times slower; tests of many drawn cases take fewer of them there.
 * ADDRESS_CHECKED: one with AddressSanitizer, whose allocator and shadow are its own.
 * RACES_ONLY: one of them that looks for races alone; whatever threads share a case is as good as the next one.
 * test_takes_all: no case is to be left out, REPRISE_TEST_ALL=1 (empty is as unset). */
#ifndef RP_TEST_SLOW_H
#define RP_TEST_SLOW_H

#include <stdbool.h>
#include <stdlib.h>

#ifndef __has_feature
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
enum { ADDRESS_CHECKED = 1 };
#else
enum { ADDRESS_CHECKED = 0 };
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
enum { RACES_ONLY = 1 };
#else
enum { RACES_ONLY = 0 };
#endif
enum { SLOW_BUILD = ADDRESS_CHECKED || RACES_ONLY };
static inline bool test_takes_all(void) {
    const char *all = getenv("REPRISE_TEST_ALL");
    return all && *all;
}

#endif
