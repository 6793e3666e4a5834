/* Every vector that lies in a block may be read and written, and each that begins before it or ends behind it, by however few bytes, ends the
   program. */
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define VECTOR(bytes)                                                                                                  \
    typedef char v##bytes __attribute__((vector_size(bytes), aligned(1)));                                             \
    static __attribute__((noinline)) void read_##bytes(const void *p) {                                                \
        v##bytes all = *(const v##bytes *)p;                                                                           \
        __asm__ volatile("" : : "r"(&all) : "memory"); /* all of it is wanted */                                       \
    }                                                                                                                  \
    static __attribute__((noinline)) void write_##bytes(void *p, const char *value) {                                  \
        *(v##bytes *)p = (v##bytes){*value, 1};                                                                        \
    }
VECTOR(32)
VECTOR(64)
VECTOR(128)

static void access_at(char *p, int bytes, bool write) {
    const char value = 0;
    if (write)
        bytes == 32 ? write_32(p, &value) : bytes == 64 ? write_64(p, &value) : write_128(p, &value);
    else
        bytes == 32 ? read_32(p) : bytes == 64 ? read_64(p) : read_128(p);
}
/* Reports are not read: no names for their addresses. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "symbolize=0"; }

static bool ends(char *p, int bytes, bool write) {
    pid_t child = fork();
    if (child == 0) {
        (void)dup2(open("/dev/null", O_WRONLY), 2);
        access_at(p, bytes, write);
        _exit(0);
    }
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void) {
    int wrong = 0;
    for (int bytes = 32; bytes <= 128; bytes *= 2) {
        for (int room = bytes; room < bytes + 9; room += 4) {
            char *block = calloc(1, (size_t)room);
            if (!block) return 2;
            for (int at = 0; at + bytes <= room; at++) {
                access_at(block + at, bytes, false);
                access_at(block + at, bytes, true);
            }
            static const int beyond[] = {1, 2, 7, 8, 9, 31};
            for (size_t k = 0; k < sizeof beyond / sizeof *beyond; k++) {
                for (int before = 0; before < 2; before++) {
                    const int at = before ? -beyond[k] : room - bytes + beyond[k];
                    const bool write = ((int)k + before + room / 4) % 2;
                    if (ends(block + at, bytes, write)) continue;
                    printf("%d bytes at %d of %d: %s unseen\n", bytes, at, room, write ? "written" : "read");
                    wrong++;
                }
            }
            free(block);
        }
    }
    return wrong != 0;
}
