/* One input of the graph parser's fuzzer: aborts on a broken promise; 1 when the input was a graph. */
#ifndef RP_TESTS_FUZZ_IR_PARSE_H
#define RP_TESTS_FUZZ_IR_PARSE_H

#include <stddef.h>
#include <stdint.h>

int rp_fuzz_ir_parse(const uint8_t *data, size_t size);

#endif
