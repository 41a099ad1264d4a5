/* A libpython that writes down what is asked of it (-DPYTHON), and a program whose threads make the first call at once. */
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
#ifdef PYTHON
#include <wchar.h>

static int (*create)(void **);
static int many(long a, long b, long c, long d, long e, long f, long g, double h, long i) {
  return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * (int)h + 9 * i;
}
int Py_IsInitialized(void) { printf("is initialized: %d\n", PYTHON); return PYTHON; }
void Py_SetProgramName(const wchar_t *name) { printf("program %ls\n", name); }
void Py_InitializeEx(int handlers) { printf("initialize %d\n", handlers); }
void *PyEval_SaveThread(void) { printf("save\n"); return NULL; }
int PyGILState_Ensure(void) { printf("ensure\n"); return 5; }
void PyGILState_Release(int state) { printf("release %d\n", state); }
int PyRun_SimpleString(const char *code) {
  void **table = dlsym(RTLD_DEFAULT, "lowdnn_capi_table");
  *(void **)&create = dlsym(RTLD_DEFAULT, "cudnnCreate");
  printf("run%s", code);
  printf("inner call %d\n", create(NULL));
  usleep(100000);
  table[1] = (void *)many; /* cudnnActivationForward */
#ifdef __x86_64__
  __asm__ volatile("pcmpeqb %%xmm0, %%xmm0\n mov $-1, %%r8\n mov $-1, %%r9" ::: "xmm0", "r8", "r9");
#else
  __asm__ volatile("movi v0.16b, #255\n mov x6, #-1\n mov x7, #-1" ::: "v0", "x6", "x7");
#endif
  return 0;
}
#else
#include <pthread.h>

int cudnnActivationForward(long, long, long, long, long, long, long, double, long);
static void *work(void *result) {
  *(int *)result = cudnnActivationForward(1, 2, 3, 4, 5, 6, 7, 8.0, 9);
  return NULL;
}
int main(void) {
  pthread_t threads[8];
  int results[8];
  for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, work, &results[i]);
  for (int i = 0; i < 8; i++) { pthread_join(threads[i], NULL); printf("%d ", results[i]); }
  printf("%d\n", cudnnActivationForward(1, 2, 3, 4, 5, 6, 7, 8.0, 9));
  return 0;
}
#endif
