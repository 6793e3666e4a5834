/* Medians of repeated calls. Called by cmd_demo.c and cmd_bench.c; knows nothing of what is measured. */
#include "measure.h"

#include <stdlib.h>
#include <time.h>

enum { SAMPLES = 1000 };
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

static rp_status once(cli_work *work, void *ctx) {
    rp_scope scope = rp_scope_begin();
    rp_status status = work(ctx);
    rp_status ended = rp_scope_end(scope, NULL, 0);
    return status ? status : ended;
}

rp_status cli_measure(cli_work *work, void *ctx, rp_device device, double seconds, struct cli_times *times) {
    static double host[SAMPLES], latency[SAMPLES], period[SAMPLES];
    size_t singles = 0, bursts = 0;
    *times = (struct cli_times){0};
    rp_status status = rp_synchronize(device);

    /* Half of the time goes to single calls on an idle device, half to bursts. */
    double end = cli_now() + 0.5 * seconds;
    while (!status && singles < SAMPLES && (singles < 3 || cli_now() < end)) {
        double begin = cli_now();
        status = once(work, ctx);
        double returned = cli_now();
        if (!status) status = rp_synchronize(device);
        latency[singles] = cli_now() - begin;
        host[singles++] = returned - begin;
    }
    if (status) return status;
    times->host_us = 1e6 * cli_median(host, singles);
    times->latency_us = 1e6 * cli_median(latency, singles);
    int burst = (int)(1e6 * BURST_SECONDS / (times->latency_us + 1e-3)) + 1;
    end = cli_now() + 0.5 * seconds;
    while (!status && bursts < SAMPLES && (bursts < 3 || cli_now() < end)) {
        double begin = cli_now();
        for (int i = 0; i < burst && !status; i++) {
            status = once(work, ctx);
        }
        if (!status) status = rp_synchronize(device);
        period[bursts++] = (cli_now() - begin) / burst;
    }
    if (status) return status;
    times->period_us = 1e6 * cli_median(period, bursts);
    times->calls = singles + bursts * (size_t)burst;
    return RP_OK;
}
