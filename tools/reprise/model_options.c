/* See model_options.h. */
#include "model_options.h"

#include <stdlib.h>
#include <string.h>

static rp_dtype float_type(const char *name) {
    return !strcmp(name, "f32")    ? RP_F32
           : !strcmp(name, "f64")  ? RP_F64
           : !strcmp(name, "f16")  ? RP_F16
           : !strcmp(name, "bf16") ? RP_BF16
                                   : RP_DTYPE_NONE;
}

static int64_t whole_number(const char *option, const char *text, struct argp_state *state) {
    enum { MOST = 1 << 20 };
    char *end;
    const int64_t n = strtoll(text, &end, 10);
    if (*end || *text < '0' || *text > '9' || n < 1 || n > MOST)
        argp_error(state, "%s: '%s' is no number from 1 to %d", option, cli_shown(text), MOST);
    return n;
}

bool cli_model_option(struct cli_model_options *o, int key, char *arg, struct argp_state *state) {
    bool rounded;
    switch (key) {
    case CLI_KEY_WEIGHTS: o->program.weights = arg; break;
    case CLI_KEY_PREFIX: o->program.prefix = arg; break;
    case CLI_KEY_DTYPE:
        rounded = !strcmp(arg, "tf32");
        o->program.dtype = rounded ? RP_F32 : float_type(arg);
        if (o->program.dtype == RP_DTYPE_NONE)
            argp_error(state, "--dtype is f32, tf32, f64, f16 or bf16, not '%s'", cli_shown(arg));
        rp_set_float32_matmul_allow_tf32(rounded);
        rp_set_float32_conv_allow_tf32(rounded);
        break;
    case CLI_KEY_BATCH: o->program.batch = whole_number("--batch", arg, state); break;
    case CLI_KEY_LENGTH: o->program.length = whole_number("--length", arg, state); break;
    case CLI_KEY_DEVICE:
        if (strcmp(arg, "cpu") && strcmp(arg, "cuda"))
            argp_error(state, "--device is cpu or cuda, not '%s'", cli_shown(arg));
        o->device = arg;
        break;
    default: return false;
    }
    o->given = true;
    return true;
}

int cli_model_device(const struct cli_model_options *o, const char *command) {
    const bool cuda = o->device ? !strcmp(o->device, "cuda") : rp_device_available(rp_cuda(0));
    const rp_device device = cuda ? rp_cuda(0) : rp_cpu();
    if (!rp_device_available(device)) {
        fprintf(stderr, "reprise %s: there is no CUDA device; `reprise doctor` says why\n", command);
        return CLI_FAILED;
    }
    if (rp_set_default_device(device) == RP_OK) return CLI_OK;
    return cli_model_failed(command, "device", rp_error_status());
}

bool cli_model_fits(const struct cli_model_options *o, const char *command, const struct model_kind *kind) {
    if (o->program.batch && !kind->batch) {
        fprintf(stderr, "reprise %s: --batch: %s takes no batch\n", command, kind->name);
        return false;
    }
    if (o->program.length && !kind->length) {
        fprintf(stderr, "reprise %s: --length: %s takes no texts\n", command, kind->name);
        return false;
    }
    if ((o->program.weights || o->program.prefix) && !kind->bytes) {
        fprintf(stderr, "reprise %s: --weights: %s has no weights\n", command, kind->name);
        return false;
    }
    return true;
}

int cli_model_failed(const char *command, const char *name, rp_status status) {
    fprintf(stderr, "reprise %s: %s: %s: %s\n", command, name, rp_status_name(status), rp_error_message());
    rp_error_take();
    return CLI_FAILED;
}
