/* Threads that have a handle, a stream and device memory each, and get in each other's way as little as they may.

   work(task): y = conv(x, w) + y, ``cycles`` times, so that the result tells of each of them. In between come handles and
   descriptors that live for one cycle, errors whose text tells threads apart, and pointers that another thread has
   destroyed. The first call whose status is unexpected is told in ``failed``.
   in_threads(tasks, count): each task in a thread of C.  destroy_twice(rounds): one descriptor by two threads.
   endless(tasks, count): threads that go on until a call fails; when the process ends, the failures are printed. */
#include "cudnn.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct task {
  int32_t number, cycles;
  void *x, *w, *y, *workspace; /* 1x1x4x4, 1x1x2x2 and 1x1x3x3 floats, workspace_bytes */
  size_t workspace_bytes;
  cudaStream_t stream;
  char failed[500];
};

/* The handles that threads have destroyed last. */
static cudnnHandle_t destroyed[64];

static void fail(struct task *task, cudnnStatus_t status, const char *call) {
  char why[300] = "";
  if (task->failed[0]) return;
  cudnnGetLastErrorString(why, sizeof why);
  snprintf(task->failed, sizeof task->failed, "%d: %s: %d %s", task->number, call, (int)status, why);
}
#define EXPECT(expected, call)                                                                                         \
  do {                                                                                                                 \
    cudnnStatus_t status = (call);                                                                                     \
    if (status != (expected)) fail(task, status, #call);                                                               \
  } while (0)
#define CALL(call) EXPECT(CUDNN_STATUS_SUCCESS, call)

/* A handle, a tensor and a backend descriptor, from their creation to their end. */
static void live_and_die(struct task *task) {
  cudnnHandle_t handle = NULL;
  cudnnTensorDescriptor_t tensor = NULL;
  cudnnBackendDescriptor_t backend = NULL;
  int64_t uid = task->number;
  CALL(cudnnCreate(&handle));
  CALL(cudnnSetStream(handle, task->stream));
  CALL(cudnnCreateTensorDescriptor(&tensor));
  CALL(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &backend));
  CALL(cudnnBackendSetAttribute(backend, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 1, &uid));
  CALL(cudnnBackendSetAttribute(backend, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 1, &task->x));
  CALL(cudnnBackendFinalize(backend));
  CALL(cudnnBackendDestroyDescriptor(backend));
  EXPECT(CUDNN_STATUS_BAD_PARAM, cudnnBackendFinalize(backend));
  CALL(cudnnDestroyTensorDescriptor(tensor));
  EXPECT(CUDNN_STATUS_BAD_PARAM, cudnnSetTensor4dDescriptor(tensor, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 1, 1, 1));
  CALL(cudnnDestroy(handle));
  destroyed[task->number % 64] = handle;
}

/* The last error is this thread's, whatever fails elsewhere. */
static void err(struct task *task) {
  char found[300], expected[40];
  cudnnHandle_t nobodys = (cudnnHandle_t)(0x7000000000 + 16 * (size_t)task->number);
  snprintf(expected, sizeof expected, "got %p,", (void *)nobodys);
  EXPECT(CUDNN_STATUS_BAD_PARAM, cudnnSetStream(nobodys, NULL));
  for (int i = 0; i < 64; i++)
    if (destroyed[i]) EXPECT(CUDNN_STATUS_BAD_PARAM, cudnnDestroy(destroyed[i]));
  EXPECT(CUDNN_STATUS_BAD_PARAM, cudnnSetStream(nobodys, NULL));
  CALL(cudnnGraphVersionCheck());
  cudnnGetLastErrorString(found, sizeof found);
  if (!strstr(found, expected)) fail(task, CUDNN_STATUS_SUCCESS, "cudnnGetLastErrorString");
}

void *work(void *given) {
  struct task *task = given;
  const float one = 1;
  cudnnHandle_t handle = NULL;
  cudnnTensorDescriptor_t x = NULL, y = NULL;
  cudnnFilterDescriptor_t w = NULL;
  cudnnConvolutionDescriptor_t conv = NULL;
  cudaStream_t stream = NULL;
  task->failed[0] = 0;
  CALL(cudnnCreate(&handle));
  CALL(cudnnSetStream(handle, task->stream));
  CALL(cudnnCreateTensorDescriptor(&x));
  CALL(cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 1, 4, 4));
  CALL(cudnnCreateTensorDescriptor(&y));
  CALL(cudnnSetTensor4dDescriptor(y, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 1, 3, 3));
  CALL(cudnnCreateFilterDescriptor(&w));
  CALL(cudnnSetFilter4dDescriptor(w, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 1, 1, 2, 2));
  CALL(cudnnCreateConvolutionDescriptor(&conv));
  CALL(cudnnSetConvolution2dDescriptor(conv, 0, 0, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
  for (int32_t i = 0; i != task->cycles && !task->failed[0]; i++) {
    CALL(cudnnConvolutionForward(handle, &one, x, task->x, w, task->w, conv, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
                                 task->workspace, task->workspace_bytes, &one, y, task->y));
    if (i % 4 == 0) live_and_die(task);
    if (i % 4 == 2) err(task);
  }
  CALL(cudnnGetStream(handle, &stream));
  if (stream != task->stream) fail(task, CUDNN_STATUS_SUCCESS, "cudnnGetStream");
  CALL(cudnnDestroy(handle));
  CALL(cudnnDestroyConvolutionDescriptor(conv));
  CALL(cudnnDestroyFilterDescriptor(w));
  CALL(cudnnDestroyTensorDescriptor(y));
  CALL(cudnnDestroyTensorDescriptor(x));
  return NULL;
}

void in_threads(struct task *tasks, int32_t count) {
  pthread_t threads[64];
  for (int32_t i = 0; i < count; i++) pthread_create(&threads[i], NULL, work, &tasks[i]);
  for (int32_t i = 0; i < count; i++) pthread_join(threads[i], NULL);
}

static cudnnBackendDescriptor_t shared;
static int32_t round_count, successes, arrived[2];

static void meet(int own, int32_t step) {
  __atomic_store_n(&arrived[own], step, __ATOMIC_SEQ_CST);
  for (int spins = 0; __atomic_load_n(&arrived[!own], __ATOMIC_SEQ_CST) < step; spins++)
    if (spins > 100000) sched_yield();
}

static void *destroy_shared(void *other) {
  int own = other != NULL;
  for (int32_t i = 1; i <= round_count; i++) {
    if (!own) cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &shared);
    meet(own, 2 * i - 1);
    /* One of them sees the other's arrival later: both meet again at one of many delays. */
    for (volatile int delay = i % 100 * own; delay < 100; delay++) {
    }
    if (!cudnnBackendDestroyDescriptor(shared)) __atomic_add_fetch(&successes, 1, __ATOMIC_SEQ_CST);
    meet(own, 2 * i);
  }
  return NULL;
}

/* Two threads destroy the same variant pack, ``rounds`` times; returns how often a call succeeded. */
int32_t destroy_twice(int32_t rounds) {
  pthread_t other;
  round_count = rounds;
  successes = arrived[0] = arrived[1] = 0;
  pthread_create(&other, NULL, destroy_shared, arrived);
  destroy_shared(NULL);
  pthread_join(other, NULL);
  return successes;
}

/* What a child of fork gets from two calls; -1 where it does not end within ten seconds. */
int32_t status_in_child(void) {
  void *tensor;
  int status = -1;
  pid_t child = fork();
  if (child == 0) {
    alarm(10);
    _exit(cudnnCreateTensorDescriptor((void *)&tensor) == 1001 && cudnnGraphVersionCheck() == 1001);
  }
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static struct task lasting[64];
static int32_t lasting_count;

void endless(const struct task *tasks, int32_t count) {
  pthread_t thread;
  memcpy(lasting, tasks, count * sizeof *tasks);
  for (int32_t i = 0; i < count; i++) {
    lasting[i].cycles = -1;
    pthread_create(&thread, NULL, work, &lasting[i]);
  }
  lasting_count = count;
}

__attribute__((destructor)) static void at_end(void) {
  cudnnHandle_t handle;
  for (int32_t i = 0; i < lasting_count; i++) {
    for (int tries = 0; tries < 10000 && !lasting[i].failed[0]; tries++) usleep(1000);
    puts(strstr(lasting[i].failed, ": 1001 ") ? "NOT_INITIALIZED" : lasting[i].failed);
  }
  if (lasting_count) printf("%d %d %zu\n", cudnnGraphVersionCheck(), cudnnCreate(&handle), cudnnGetVersion());
}
