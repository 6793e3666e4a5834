/* The CPU's table of templates, asked by library.c. */
#ifndef RP_KERNEL_CPU_TEMPLATES_H
#define RP_KERNEL_CPU_TEMPLATES_H

#include "kernel/template.h"

enum {
    RP__CPU_CONVOLUTIONS = 1u << RP__LIB_CONV_FORWARD | 1u << RP__LIB_CONV_INPUT | 1u << RP__LIB_CONV_WEIGHT,
    RP__CPU_TEMPLATED = 1u << RP__LIB_MATMUL | RP__CPU_CONVOLUTIONS, /* ops that the table has rows for */
    RP__CPU_TEMPLATES = 6
};
extern const rp__template *const rp__cpu_templates[RP__CPU_TEMPLATES];

#endif
