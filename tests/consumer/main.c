/* A program of a user's: sees the installed header and library, nothing of the source tree. */
#include <reprise.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    char want[64];
    snprintf(want, sizeof want, "%d.%d.%d", RP_VERSION_MAJOR, RP_VERSION_MINOR, RP_VERSION_PATCH);
    if (strcmp(rp_version_string(), want)) {
        fprintf(stderr, "header %s, library %s\n", want, rp_version_string());
        return 1;
    }
    puts(rp_version_string());
    return 0;
}
