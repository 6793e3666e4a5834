/* What stands beside the emulated cuDNN for the libraries that a real one opens: it is looked for, and never called. */
extern int cudasim_cudnn_part;
__attribute__((visibility("default"))) int cudasim_cudnn_part = 9;
