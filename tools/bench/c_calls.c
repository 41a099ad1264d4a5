/* One convolution's calls as PyTorch makes them: the times of each call of many cycles. */
#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

#include "cudnn.h"

/* A function of the library, whatever other one of its name the process has. */
#define FROM_LIBRARY(name) __typeof__(name) *const call_##name = (__typeof__(name) *)dlsym(library, #name)

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1e6 + now.tv_nsec * 1e-3;
}

/* library: from dlopen.  times_us: ``cycles`` rows with one time for each of the eight calls.
   A NULL ``plan`` is not executed. The program computes by itself for ``pause_us`` before each cycle.
   Returns the statuses of all calls, or-ed. */
int run(void *library, cudnnHandle_t handle, cudnnBackendDescriptor_t plan, void **pointers, int64_t *uids,
        int64_t count, void *workspace, double pause_us, int64_t cycles, double *times_us) {
  FROM_LIBRARY(cudnnSetStream);
  FROM_LIBRARY(cudnnBackendCreateDescriptor);
  FROM_LIBRARY(cudnnBackendSetAttribute);
  FROM_LIBRARY(cudnnBackendFinalize);
  FROM_LIBRARY(cudnnBackendExecute);
  FROM_LIBRARY(cudnnBackendDestroyDescriptor);
  int status = 0;
  for (int64_t cycle = 0; cycle < cycles; ++cycle) {
    cudnnBackendDescriptor_t pack = NULL;
    double before = now_us();
    for (const double until = before + pause_us; before < until; before = now_us()) {
    }
#define TIMED(call)                \
  do {                             \
    status |= (call);              \
    const double after = now_us(); \
    *times_us++ = after - before;  \
    before = after;                \
  } while (0)
    TIMED(call_cudnnSetStream(handle, NULL));
    TIMED(call_cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack));
    TIMED(call_cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count,
                                        pointers));
    TIMED(call_cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids));
    TIMED(call_cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace));
    TIMED(call_cudnnBackendFinalize(pack));
    TIMED(plan ? call_cudnnBackendExecute(handle, plan, pack) : CUDNN_STATUS_SUCCESS);
    TIMED(call_cudnnBackendDestroyDescriptor(pack));
#undef TIMED
  }
  return status;
}

struct arguments {
  void *library;
  cudnnHandle_t handle;
  cudnnBackendDescriptor_t plan;
  void **pointers;
  int64_t *uids;
  int64_t count;
  void *workspace;
  double pause_us;
  int64_t cycles;
  double *times_us;
  int status;
};

static void *run_with(void *arguments) {
  struct arguments *given = arguments;
  given->status = run(given->library, given->handle, given->plan, given->pointers, given->uids, given->count,
                      given->workspace, given->pause_us, given->cycles, given->times_us);
  return NULL;
}

/* ``run`` in a thread of its own, which nobody else knows; -1 where there can be none. */
int run_in_thread(void *library, cudnnHandle_t handle, cudnnBackendDescriptor_t plan, void **pointers, int64_t *uids,
                  int64_t count, void *workspace, double pause_us, int64_t cycles, double *times_us) {
  struct arguments given = {library, handle, plan, pointers, uids, count, workspace, pause_us, cycles, times_us, -1};
  pthread_t thread;
  if (pthread_create(&thread, NULL, run_with, &given) == 0) {
    pthread_join(thread, NULL);
  }
  return given.status;
}
