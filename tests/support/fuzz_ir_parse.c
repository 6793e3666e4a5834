/* Fuzzer of rp_ir_parse and of everything that takes its result: printing, checking, comparing, parsing again. With libFuzzer
   (clang -fsanitize=fuzzer, RP_LIBFUZZER defined) the engine drives it; otherwise test_fuzz_ir.c does, with mutations of real
   graphs. */
#include "support/fuzz_ir_parse.h"

#include <reprise.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *text_of(const rp_ir *ir, size_t *n) {
    *n = rp_ir_text(ir, NULL, 0);
    char *text = malloc(*n + 1);
    if (text && rp_ir_text(ir, text, *n + 1) != *n) abort();
    return text;
}

int rp_fuzz_ir_parse(const uint8_t *data, size_t size) {
    rp_ir *ir = rp_ir_parse((const char *)data, size);
    bool parsed = !rp_failed();
    if (parsed) {
        size_t n;
        char *text = text_of(ir, &n);
        (void)rp_ir_check(ir);
        (void)rp_error_take();
        if (text) {
            rp_ir *again = rp_ir_parse(text, n);
            if (rp_failed() || !rp_ir_equal(ir, again)) {
                (void)fprintf(stderr, "not read back: %s\n%s\n", rp_error_message(), text);
                abort();
            }
            rp_ir_release(again);
        }
        free(text);
    } else if (rp_error_take() == RP_OK) {
        abort();
    }
    rp_ir_release(ir);
    return parsed;
}

#ifdef RP_LIBFUZZER
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    (void)rp_fuzz_ir_parse(data, size);
    return 0;
}
#endif
