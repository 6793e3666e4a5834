/* Medians of repeated calls. Called by cmd_demo.c and cmd_bench.c; knows nothing of what is measured. */
#include "measure.h"

#include <stdlib.h>
#include <time.h>

enum { SAMPLES = 1 << 16 };
static const double BURST_SECONDS = 5e-3; /* long beside one wait for a device */

double cli_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double cli_median(double *values, size_t n) {
    qsort(values, n, sizeof *values, compare);
    return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

rp_status cli_once(cli_work *work, void *ctx) {
    rp_scope scope = rp_scope_begin();
    rp_status status = work(ctx);
    rp_status ended = rp_scope_end(scope, NULL, 0);
    return status ? status : ended;
}

struct samples {
    double host[SAMPLES], latency[SAMPLES], period[SAMPLES];
    size_t singles, bursts;
};

/* Single calls on an idle device, for about as long as a burst takes. */
static rp_status single_calls(cli_work *work, void *ctx, rp_device device, struct samples *s) {
    rp_status status = RP_OK;
    double end = cli_now() + BURST_SECONDS;
    do {
        double begin = cli_now();
        status = cli_once(work, ctx);
        double returned = cli_now();
        if (!status) status = rp_synchronize(device);
        s->latency[s->singles] = cli_now() - begin;
        s->host[s->singles++] = returned - begin;
    } while (!status && s->singles < SAMPLES && cli_now() < end);
    return status;
}

static rp_status burst_of_calls(cli_work *work, void *ctx, rp_device device, int n, struct samples *s) {
    rp_status status = RP_OK;
    double begin = cli_now();
    for (int i = 0; i < n && !status; i++) {
        status = cli_once(work, ctx);
    }
    if (!status) status = rp_synchronize(device);
    s->period[s->bursts++] = (cli_now() - begin) / n;
    return status;
}

rp_status cli_measure(cli_work *work, void *ctx, rp_device device, double seconds, struct cli_times *times) {
    static struct samples s;
    s.singles = s.bursts = 0;
    *times = (struct cli_times){0};
    rp_status status = rp_synchronize(device);

    /* Single calls and bursts take turns: what disturbs the machine for a while disturbs a part of either. */
    int burst = 0;
    double end = cli_now() + seconds;
    while (!status && (s.bursts < 3 || (s.bursts < SAMPLES && cli_now() < end))) {
        if (s.singles < SAMPLES) status = single_calls(work, ctx, device, &s);
        if (burst == 0) burst = (int)(BURST_SECONDS / (cli_median(s.latency, s.singles) + 1e-9)) + 1;
        if (!status) status = burst_of_calls(work, ctx, device, burst, &s);
    }
    if (status) return status;
    times->host_us = 1e6 * cli_median(s.host, s.singles);
    times->host_low_us = 1e6 * s.host[s.singles / 10]; /* sorted now */
    times->latency_us = 1e6 * cli_median(s.latency, s.singles);
    times->period_us = 1e6 * cli_median(s.period, s.bursts);
    times->calls = s.singles + s.bursts * (size_t)burst;
    return RP_OK;
}
