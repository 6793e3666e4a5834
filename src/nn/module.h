/* What layers need of modules (module.c): a child with a layer's tensors in it. */
#ifndef RP_NN_MODULE_H
#define RP_NN_MODULE_H

#include <reprise_nn.h>

typedef struct rp__module_field {
    const char *name;
    rp_tensor **place; /* of the layer, which holds a reference; NULL in it: absent */
    bool buffer;
} rp__module_field;

/* A child of m that takes over the layer's references; on failure they are given back, and m is as before. */
rp_status rp__module_adopt(rp_module *m, const char *name, const rp__module_field *fields, size_t n, rp_module **child);
/* For layers of layers: takes back the newest child of its parent with all below it, after a failure. The failed module is passed
   over. */
void rp__module_undo(rp_module *child);

/* memory goes with m: give_back(memory) when m is released. Of one piece a module. */
void rp__module_own(rp_module *m, void *memory, void (*give_back)(void *memory));

#endif
