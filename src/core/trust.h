/* Whose libraries are opened. A library that the search finds outside of the system's folders runs with the rights of this
   process, so nobody but this user and root may have been able to write it. */
#ifndef RP_CORE_TRUST_H
#define RP_CORE_TRUST_H

#include <stddef.h>

/* NULL: the file at `path`, which has a / in it, may be opened; else why not, into `why`. It and its folder belong to this user or
   to root, and no one else may write them. A group whose number is the user's own, as systems with a group a user give it,
   counts as the user; a folder in which only owners remove files (/tmp) may be written. A file that is not there is not refused: the
   loader says so. */
const char *rp__library_refused(const char *path, char *why, size_t bytes);

#endif
