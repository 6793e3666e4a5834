/* The version string. Owns nothing else; the numbers are those of the public header, which the build reads as well. */
#include <reprise.h>

const char *rp_version_string(void) {
    return RP_STRINGIZE(RP_VERSION_MAJOR) "." RP_STRINGIZE(RP_VERSION_MINOR) "." RP_STRINGIZE(RP_VERSION_PATCH);
}
