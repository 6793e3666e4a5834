/* What tests of passes share: graphs as text in, graphs as text out. */
#ifndef RP_TEST_PASSES_H
#define RP_TEST_PASSES_H

#include "trace/ir.h"

rp_ir *test_parse(const char *text);                       /* fails the test with the parser's message */
void test_expect_graph(const rp_ir *ir, const char *text); /* prints both when they differ; parses what it printed */
void test_no_error(void);

#endif
