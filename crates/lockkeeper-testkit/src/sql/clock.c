/* Steps the wall clock of one process and its children, for tests.
 *
 * Preloaded before libc. The offset in nanoseconds is read from the mapped
 * file LOCKKEEPER_CLOCK at every look, so a test steps the clock of a running
 * server by writing eight bytes. Monotonic clocks are left alone, as a step of
 * the real clock leaves them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static volatile int64_t none, *offset = &none;

__attribute__((constructor)) static void open_offset(void) {
  const char *path = getenv("LOCKKEEPER_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *page = mmap(0, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  if (page != MAP_FAILED) offset = page;
  close(file);
}

static struct timespec moved(struct timespec at, int64_t by) {
  int64_t nanos = at.tv_nsec + by % SECOND;
  at.tv_sec += by / SECOND;
  if (nanos < 0) nanos += SECOND, at.tv_sec--;
  if (nanos >= SECOND) nanos -= SECOND, at.tv_sec++;
  at.tv_nsec = nanos;
  return at;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
  int result = syscall(SYS_clock_gettime, clock, at);
  if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    *at = moved(*at, *offset);
  return result;
}

int gettimeofday(struct timeval *at, void *zone) {
  struct timespec now;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *at) {
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}

/* The kernel waits by its own clock: a deadline read from the stepped one is
 * moved back, or a step of an hour would be an hour's wait. */
int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                           const struct timespec *until) {
  static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  struct timespec own = moved(*until, -*offset);
  if (own.tv_sec < 0) own.tv_sec = 0;
  return real(cond, mutex, &own);
}
