/* The environment. Everything that the library reads of it goes through rp__env, so that a program which runs with more rights
   than whoever started it (set-user-ID, file capabilities) takes no program, library, folder or switch from there. What is
   set and not understood is told once, on standard error, and by rp_doctor: a switch without effect is worse than none. */
#ifndef RP_CORE_ENV_H
#define RP_CORE_ENV_H

#include <stdbool.h>
#include <stddef.h>

/* The value; NULL when the variable is unset, empty, or not to be believed. A name that begins with REPRISE_ has a row in
   core/env.def. */
const char *rp__env(const char *name);
bool rp__env_ignored(void);                /* the program has rights that whoever started it may not have */
bool rp__env_understood(const char *name); /* unset counts as understood */
long long rp__env_number(const char *name, long long otherwise); /* of a row NUMBER */

/* Each variable of ours that is unknown, or whose value is: one sentence at a time. Returns how many. */
size_t rp__env_faults(void (*tell)(void *ctx, const char *sentence), void *ctx);
void rp__env_check(void); /* logs them, the first time that it is called */

#endif
