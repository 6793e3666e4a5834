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
/* The same for a layer whose forward asks for the hooks of its module, which *own becomes. */
rp_status rp__module_adopt_layer(rp_module *m, const char *name, const rp__module_field *fields, size_t n,
                                 const rp_module **own);
/* For layers of layers: takes back the newest child of its parent with all below it, after a failure. The failed module is passed
   over. */
void rp__module_undo(rp_module *child);

/* memory goes with m: give_back(memory) when m is released. Of one piece a module. */
void rp__module_own(rp_module *m, void *memory, void (*give_back)(void *memory));

/* The hooks of a layer's module (NULL: none) around its forward, over what goes in and comes out; they may put other tensors
   there. rp__hooks_result: of one result, which is y at first. */
void rp__hooks_before(const rp_module *m, rp_tensor **in, size_t n_in);
void rp__hooks_after(const rp_module *m, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);
rp_tensor *rp__hooks_result(const rp_module *m, rp_tensor *const *in, size_t n_in, rp_tensor *y);

#endif
