/* A wall clock that tests can step: loaded into a server before its own
   libraries, it adds the number of seconds in the file $LOCKKEEPER_CLOCK to
   whatever the wall clock says. Other clocks are left alone, as a real step
   leaves them. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static const volatile int64_t *offset;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("LOCKKEEPER_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    /* A server with the wrong time would prove nothing. */
    if (page == MAP_FAILED) abort();
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    offset = page;
}

int clock_gettime(clockid_t id, struct timespec *time) {
    /* Libraries ask before this one has started. */
    if (!real_clock_gettime) real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real_clock_gettime(id, time);
    if (result == 0 && offset && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        time->tv_sec += *offset;
    return result;
}

int gettimeofday(struct timeval *time, void *zone) {
    struct timespec now;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return result;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
