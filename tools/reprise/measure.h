/* Times of one repeated call, as `demo` and `bench` print them: medians of many calls by CLOCK_MONOTONIC. */
#ifndef REPRISE_MEASURE_H
#define REPRISE_MEASURE_H

#include <reprise.h>

double cli_now(void); /* seconds */

/* One call; a status other than RP_OK ends the measurement. Tensors that it makes are released between calls. */
typedef rp_status cli_work(void *ctx);

struct cli_times {
    double host_us; /* until a call returns, the device being idle */
    double
        host_low_us; /* what a tenth of the calls stays below: neighbours of a machine change it less than the median */
    double latency_us; /* until its result is there */
    double period_us;  /* per call, many in a row */
    size_t calls;      /* that were timed */
};

/* One call, whose tensors are released: also of calls that are not timed, since what is held of them changes what later ones do. */
rp_status cli_once(cli_work *work, void *ctx);

/* Repeats `work` on the device for about `seconds`. The error stays the thread's sticky error. */
rp_status cli_measure(cli_work *work, void *ctx, rp_device device, double seconds, struct cli_times *times);

/* Median of n numbers, which are sorted by it. n > 0. */
double cli_median(double *values, size_t n);

#endif
