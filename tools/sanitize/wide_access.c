/* What kernels of one instruction set call before each vector that is wider than 16 bytes, by the linker's --wrap in builds with
   AddressSanitizer, whose checks are calls there (cmake/flags.cmake). Its own function for any size takes longer than all of a kernel: it asks
   for the ends, then byte by byte. Here words of its map say that all of a vector may be read or written, as nearly always; all else is asked
   as before. (An address that is no program's at all ends in its map, as one of few bytes does.) */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

void __asan_get_shadow_mapping(size_t *scale, size_t *offset);
void __real___asan_loadN(uintptr_t at, size_t bytes);
void __real___asan_storeN(uintptr_t at, size_t bytes);
void __wrap___asan_loadN(uintptr_t at, size_t bytes);
void __wrap___asan_storeN(uintptr_t at, size_t bytes);

/* Of the map a byte stands for eight of memory, and 0 says that all of them may be used. */
enum { SCALE = 3, MOST = 16 /* bytes of the map that are looked at here */ };
static size_t map; /* 0: not known yet, or another scale */

__attribute__((constructor)) static void find_map(void) {
    size_t scale, offset;
    __asan_get_shadow_mapping(&scale, &offset);
    map = scale == SCALE ? offset : 0;
}

static inline bool all_usable(uintptr_t at, size_t bytes) {
    const uintptr_t first = at >> SCALE, n = ((at + bytes - 1) >> SCALE) - first + 1;
    if (!map || !bytes || n > MOST) return false;
    const char *p = (const char *)(map + first);
    if (n >= sizeof(uint64_t)) { /* two words that overlap */
        uint64_t a, b;
        memcpy(&a, p, sizeof a);
        memcpy(&b, p + n - sizeof b, sizeof b);
        return (a | b) == 0;
    }
    if (n >= sizeof(uint32_t)) {
        uint32_t a, b;
        memcpy(&a, p, sizeof a);
        memcpy(&b, p + n - sizeof b, sizeof b);
        return (a | b) == 0;
    }
    for (uintptr_t i = 0; i < n; i++) {
        if (p[i]) return false;
    }
    return true;
}

void __wrap___asan_loadN(uintptr_t at, size_t bytes) {
    if (!all_usable(at, bytes)) __real___asan_loadN(at, bytes);
}
void __wrap___asan_storeN(uintptr_t at, size_t bytes) {
    if (!all_usable(at, bytes)) __real___asan_storeN(at, bytes);
}
