/* See options.h. */
#include "core/options.h"

#include <string.h>

/* No struct of ours comes near it: a larger size is memory that was never set, and nothing behind it is looked at. */
enum { LARGEST = 4096 };

static rp_status check_size(const char *function, size_t size) {
    if (size < sizeof size || size > LARGEST)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                        "%s: struct_size is %zu, which is no size of this struct: use RP_OPTIONS or sizeof", function,
                        size);
    return RP_OK;
}

rp_status rp__options_read(const char *function, const void *given, size_t known, void *out) {
    memset(out, 0, known);
    memcpy(out, &known, sizeof known);
    if (!given) return RP_OK;
    size_t size;
    memcpy(&size, given, sizeof size);
    RP_TRY(check_size(function, size));
    const unsigned char *bytes = given;
    for (size_t k = known; k < size; k++)
        if (bytes[k])
            return rp__fail(
                RP_ERROR_INVALID_ARGUMENT,
                "%s: struct_size is %zu, and byte %zu is set: this library knows the first %zu bytes, a newer one "
                "is needed",
                function, size, k, known);
    memcpy(out, given, size < known ? size : known);
    memcpy(out, &known, sizeof known);
    return RP_OK;
}

rp_status rp__options_write(const char *function, void *given, size_t known, const void *in) {
    size_t size;
    memcpy(&size, given, sizeof size);
    RP_TRY(check_size(function, size));
    memcpy((char *)given + sizeof size, (const char *)in + sizeof size, (size < known ? size : known) - sizeof size);
    if (size > known) memset((char *)given + known, 0, size - known);
    return RP_OK;
}
