/* Build-time program: reads a public header and writes what is derived from its RP_CALL declarations, the functions that can
   fail, so that each is written once:
     INCLUDE_DIR/NAME_calls.h  rp_x_at(site, ...), and the macro rp_x that gives it the line of the call
     GEN_DIR/NAME_calls.inc    the functions rp_x without a site (src/nn/calls.c)
   usage: gencalls HEADER INCLUDE_DIR GEN_DIR */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *what, const char *which) {
    fprintf(stderr, "gencalls: %s: %.60s\n", what, which);
    exit(1);
}

static char *read_all(const char *path) {
    FILE *f = fopen(path, "rb");
    size_t n = 0, room = 1 << 20;
    char *text = malloc(room + 1);
    if (!f || !text) die("cannot read", path);
    n = fread(text, 1, room, f);
    if (n == room || ferror(f)) die("too long or unreadable", path);
    text[n] = 0;
    fclose(f);
    return text;
}

static bool word(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* Comments away, every run of white space one blank. */
static void tidy(char *text) {
    char *to = text;
    for (char *p = text; *p;) {
        if (p[0] == '/' && p[1] == '*') {
            char *end = strstr(p + 2, "*/");
            if (!end) die("a comment without end", p);
            p = end + 2;
            *p = *p ? *p : ' ';
        } else if (isspace((unsigned char)*p)) {
            bool line = false;
            while (isspace((unsigned char)*p)) line = *p++ == '\n' || line;
            if (to > text && to[-1] != '\n') *to++ = line ? '\n' : ' ';
        } else {
            *to++ = *p++;
        }
    }
    *to = 0;
}

static void put(FILE *f, const char *begin, const char *end) {
    for (const char *p = begin; p < end; p++) fputc(*p == '\n' ? ' ' : *p, f);
}

/* The name of a parameter: the last word, or what a function's address is kept in. */
static void put_name(FILE *f, const char *begin, const char *end) {
    const char *pointer = strstr(begin, "(*");
    if (pointer && pointer < end) {
        begin = pointer + 2;
        end = begin;
        while (word(*end)) end++;
    } else {
        while (end > begin && !word(end[-1])) end--;
        begin = end;
        while (word(begin[-1])) begin--;
    }
    put(f, begin, end);
}

static void put_names(FILE *f, const char *begin, const char *end) {
    int depth = 0;
    for (const char *p = begin; p <= end; p++) {
        if (*p == '(') depth++;
        if (*p == ')' && p < end) depth--;
        if (p < end && (*p != ',' || depth > 0)) continue;
        fputs(", ", f);
        put_name(f, begin, p);
        begin = p + 1;
    }
}

/* One declaration, from behind RP_CALL to its semicolon: TYPE NAME(PARAMETERS) */
static void call(FILE *header, FILE *inc, const char *begin, const char *end) {
    const char *open = memchr(begin, '(', (size_t)(end - begin)), *close = end;
    while (close > begin && *close != ')') close--;
    if (!open || close <= open) die("not a function", begin);
    const char *name = open;
    while (word(name[-1])) name--;
    bool none = close - open == 5 && strncmp(open, "(void", 5) == 0;
    int length = (int)(open - name);
    if (length > 3 && strncmp(open - 3, "_at", 3) == 0) die("the end _at is that of the form with a site", name);

    fputs("RP_API ", header);
    put(header, begin, name);
    fprintf(header, "%.*s_at(const char *site", length, name);
    if (!none) {
        fputs(", ", header);
        put(header, open + 1, close);
    }
    fprintf(header, ");\n#define %.*s(%s) %.*s_at(RP_HERE%s)\n", length, name, none ? "" : "...", length, name,
            none ? "" : ", __VA_ARGS__");

    put(inc, begin, name);
    fprintf(inc, "(%.*s)", length, name);
    put(inc, open, close + 1);
    fprintf(inc, " { %s%.*s_at(NULL", strncmp(begin, "void ", 5) == 0 && begin[5] != '*' ? "" : "return ", length,
            name);
    if (!none) put_names(inc, open + 1, close);
    fputs("); }\n", inc);
}

static FILE *create(const char *dir, const char *base, const char *suffix) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s%s", dir, base, suffix) >= (int)sizeof path) die("path too long", dir);
    FILE *f = fopen(path, "wb");
    if (!f) die("cannot write", path);
    return f;
}

static void finish(FILE *f, const char *name) {
    if (ferror(f) | fclose(f)) die("cannot write", name);
}

int main(int argc, char **argv) {
    if (argc != 4) die("usage", "gencalls HEADER INCLUDE_DIR GEN_DIR");
    char base[256], guard[256];
    const char *slash = strrchr(argv[1], '/');
    if (snprintf(base, sizeof base, "%s", slash ? slash + 1 : argv[1]) >= (int)sizeof base)
        die("name too long", argv[1]);
    if (strchr(base, '.')) *strchr(base, '.') = 0;
    for (size_t i = 0; i <= strlen(base); i++) guard[i] = (char)toupper((unsigned char)base[i]);
    char *text = read_all(argv[1]);
    tidy(text);
    FILE *header = create(argv[2], base, "_calls.h"), *inc = create(argv[3], base, "_calls.inc");
    fprintf(
        header,
        "/* Generated from %s.h, which includes it: its functions with the place of the call, and the macros that give "
        "it. */\n#ifndef %s_CALLS_H\n#define %s_CALLS_H\n\n#include \"%s.h\"\n\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n",
        base, guard, guard, base);
    fprintf(inc, "/* Generated from %s.h: its functions without the place of the call, for bindings. */\n", base);
    size_t n = 0;
    for (char *p = text; (p = strstr(p, "\nRP_CALL ")) != NULL; n++) {
        char *end = strchr(p, ';');
        if (!end) die("a declaration without end", p + 1);
        call(header, inc, p + strlen("\nRP_CALL "), end);
        p = end;
    }
    if (!n) die("no RP_CALL in", argv[1]);
    fputs("\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n", header);
    finish(header, base);
    finish(inc, base);
    free(text);
    return 0;
}
