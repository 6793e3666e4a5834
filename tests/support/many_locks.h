/* For a program of tests that forks while the library compiles: a fork holds every lock of the library at once, and the search of
 * ThreadSanitizer for lock cycles ends the program at the 64th. Without that sanitizer nothing calls this. */
#ifndef RP_TEST_MANY_LOCKS_H
#define RP_TEST_MANY_LOCKS_H

__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "detect_deadlocks=0"; }

#endif
