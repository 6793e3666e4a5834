/* What clang's check of pointers that overflow calls where it found one, by the linker's --wrap in builds with that check. It counts a null
   pointer that is moved with them, gcc's does not: nothing is read there, or AddressSanitizer sees it (cmake/flags.cmake). All else goes on to
   the report, which ends the program. */
#include <stdint.h>

void __ubsan_handle_pointer_overflow_abort(void *check, uintptr_t from, uintptr_t to);
void __wrap___ubsan_handle_pointer_overflow(void *check, uintptr_t from, uintptr_t to);

void __wrap___ubsan_handle_pointer_overflow(void *check, uintptr_t from, uintptr_t to) {
    if (from) __ubsan_handle_pointer_overflow_abort(check, from, to);
}
