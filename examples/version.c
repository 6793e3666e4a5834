/* The smallest program: prints the version of the library that it runs with. */
#include <reprise.h>
#include <stdio.h>

int main(void) {
    printf("reprise %s\n", rp_version_string());
    return 0;
}
