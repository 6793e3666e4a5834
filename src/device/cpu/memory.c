/* See memory.h. What is read here is text of /proc and of the control groups' file systems, whose formats the kernel keeps. Read
   anew at each call: limits change, and other processes use memory as well. Called for segments only. */
#include "device/cpu/memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Texts are those of one process and one group: some KiB. Lines of mounts that are longer are of no control group. */
enum { PATH = 512, TEXT = 4096, LINE = 2048 };

/* What fits of a file, as a string; false: there is none. */
static bool read_text(const char *root, const char *dir, const char *file, char text[TEXT]) {
    char path[PATH];
    int length = snprintf(path, sizeof path, "%s%s/%s", root, dir, file);
    int fd = length > 0 && length < PATH ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    size_t used = 0;
    if (fd < 0) return false;
    for (ssize_t n; used < TEXT - 1 && (n = read(fd, text + used, TEXT - 1 - used)) > 0;) used += (size_t)n;
    text[used] = 0;
    close(fd);
    return used > 0;
}

/* A file of one number; "max" is UINT64_MAX. */
static bool read_number(const char *root, const char *dir, const char *file, uint64_t *out) {
    char text[TEXT];
    if (!read_text(root, dir, file, text)) return false;
    *out = text[0] >= '0' && text[0] <= '9' ? strtoull(text, NULL, 10) : UINT64_MAX;
    return true;
}

/* The number of the line that begins with `key`; 0: there is none. */
static uint64_t number_of(const char *text, const char *key) {
    size_t length = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) == 0) return strtoull(line + length, NULL, 10);
    }
    return 0;
}

static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }
static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* What one group of version 2 leaves; pages of files can be dropped. */
static uint64_t left_v2(const char *root, const char *dir, uint64_t swap) {
    char text[TEXT];
    uint64_t limit, used, swap_limit, swap_used;
    if (!read_number(root, dir, "memory.max", &limit) || limit == UINT64_MAX ||
        !read_number(root, dir, "memory.current", &used))
        return UINT64_MAX;
    uint64_t files = read_text(root, dir, "memory.stat", text)
                         ? number_of(text, "inactive_file ") + number_of(text, "active_file ")
                         : 0;
    if (read_number(root, dir, "memory.swap.max", &swap_limit) &&
        read_number(root, dir, "memory.swap.current", &swap_used))
        swap = least(swap, less(swap_limit, swap_used));
    return less(limit, used) + files + swap;
}

static uint64_t left_v1(const char *root, const char *dir, uint64_t swap) {
    char text[TEXT];
    uint64_t limit, used;
    if (!read_number(root, dir, "memory.limit_in_bytes", &limit) || limit >= UINT64_MAX / 4 ||
        !read_number(root, dir, "memory.usage_in_bytes", &used))
        return UINT64_MAX;
    uint64_t files = read_text(root, dir, "memory.stat", text)
                         ? number_of(text, "total_inactive_file ") + number_of(text, "total_active_file ")
                         : 0;
    uint64_t left = less(limit, used) + files + swap;
    if (read_number(root, dir, "memory.memsw.limit_in_bytes", &limit) && limit < UINT64_MAX / 4 &&
        read_number(root, dir, "memory.memsw.usage_in_bytes", &used))
        left = least(left, less(limit, used) + files);
    return left;
}

/* Takes the next word of a line apart; NULL: there is none. */
static char *word(char **rest) {
    char *w = *rest + strspn(*rest, " \n"), *end = w + strcspn(w, " \n");
    if (w == end) return NULL;
    *rest = end + (*end != 0);
    *end = 0;
    return w;
}

static bool lists(const char *options, const char *option) { /* "rw,memory" lists "memory" */
    size_t length = strlen(option);
    for (const char *at = options; (at = strstr(at, option)); at += length)
        if ((at == options || at[-1] == ',') && (at[length] == ',' || at[length] == 0)) return true;
    return false;
}

/* Where the hierarchy of the version is mounted, and which of its groups is mounted there (not "/" in some containers). */
static bool find_mount(const char *root, bool v2, char mount[PATH], char top[PATH]) {
    char path[PATH], line[LINE];
    snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
    FILE *file = fopen(path, "re");
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        char *rest = line, *field[5] = {0}, *type = NULL, *options = NULL, *w;
        for (unsigned k = 0; k < 5; k++) field[k] = word(&rest); /* id, parent, device, root, mount point */
        while ((w = word(&rest)) && strcmp(w, "-") != 0) {}
        type = word(&rest);
        (void)word(&rest);
        options = word(&rest);
        if (!options || strcmp(type, v2 ? "cgroup2" : "cgroup") != 0 || (!v2 && !lists(options, "memory"))) continue;
        found = snprintf(mount, PATH, "%s", field[4]) < PATH && snprintf(top, PATH, "%s", field[3]) < PATH;
    }
    if (file) fclose(file);
    return found;
}

/* The process's group: of lines "number:controllers:path" that of the version. */
static bool find_group(const char *root, bool v2, char group[PATH]) {
    char text[TEXT];
    if (!read_text(root, "/proc/self", "cgroup", text)) return false;
    for (char *line = text, *end; *line; line = end) {
        end = line + strcspn(line, "\n");
        end += *end == '\n' ? (*end = 0, 1) : 0;
        char *controllers = strchr(line, ':'), *at = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!at) continue;
        *at++ = 0;
        if (v2 ? controllers[1] == 0 : lists(controllers + 1, "memory")) return snprintf(group, PATH, "%s", at) < PATH;
    }
    return false;
}

/* The least that the process's group and those around it leave; *limit is written when that is below `least_yet`. */
static uint64_t groups_left(const char *root, bool v2, uint64_t swap, uint64_t least_yet, char *limit, size_t n) {
    char mount[PATH], top[PATH], group[PATH], dir[2 * PATH];
    if (!find_group(root, v2, group) || !find_mount(root, v2, mount, top)) return least_yet;
    /* A path that does not lie below what is mounted (of another name space) has nothing to look at but the mount itself. */
    size_t skip = strcmp(top, "/") == 0 ? 0 : strlen(top);
    const char *below = strncmp(group, top, skip) == 0 && strncmp(group, "/..", 3) != 0 ? group + skip : "";
    size_t base = strlen(mount);
    if (snprintf(dir, sizeof dir, "%s%s", mount, below) >= (int)sizeof dir) return least_yet;
    for (size_t length = strlen(dir);;) {
        while (length > base && dir[length - 1] == '/') dir[--length] = 0;
        uint64_t left = v2 ? left_v2(root, dir, swap) : left_v1(root, dir, swap);
        if (left < least_yet) {
            least_yet = left;
            snprintf(limit, n, "the limit of control group %s", length > base ? dir + base : "/");
        }
        if (length <= base) return least_yet;
        while (length > base && dir[length - 1] != '/') dir[--length] = 0;
    }
}

uint64_t rp__cpu_memory_left(const char *root, char *limit, size_t n) {
    char text[TEXT];
    if (n) limit[0] = 0;
    if (!read_text(root, "/proc", "meminfo", text)) return UINT64_MAX;
    uint64_t memory = number_of(text, "MemAvailable:"), swap = number_of(text, "SwapFree:") * 1024;
    if (memory == 0) return UINT64_MAX; /* a kernel that does not say */
    uint64_t left = memory * 1024 + swap;
    snprintf(limit, n, "memory and swap of the machine");
    left = groups_left(root, true, swap, left, limit, n);
    return groups_left(root, false, swap, left, limit, n);
}

uint64_t rp__cpu_memory_promised(const char *root, uint64_t reserved) {
    char text[TEXT];
    if (!read_text(root, "/proc/self", "status", text)) return 0;
    uint64_t touched = (number_of(text, "RssAnon:") + number_of(text, "VmSwap:")) * 1024;
    return touched ? less(reserved, touched) : 0;
}
