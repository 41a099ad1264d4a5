/* The calls of calls.c by a program that knows nothing of Python. The emulated device's memory is Python's, so that the
   program fills and reads it through the interpreter that the library has started. */
#include "calls.c"
#include <dlfcn.h>
#include <stdlib.h>

enum { ARRAYS = 8 };
static const unsigned sizes[ARRAYS] = {50, 54, 75, 3, 3, 3, 3, 3};

static void python(const char *text, void *place, void *host, unsigned bytes) {
  char code[600];
  int (*ensure)(void), (*run)(const char *);
  void (*release)(int);
  *(void **)&ensure = dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
  *(void **)&run = dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
  *(void **)&release = dlsym(RTLD_DEFAULT, "PyGILState_Release");
  snprintf(code, sizeof code, text, (unsigned long)place, (unsigned long)host, bytes);
  int state = ensure();
  if (run(code)) exit(2);
  release(state);
}

int main(void) {
  void *memory[ARRAYS];
  float *data[ARRAYS];
  char failed[500];
  if (cudnnGraphVersionCheck() != CUDNN_STATUS_SUCCESS) return 1;
  for (int i = 0; i < ARRAYS; i++) {
    data[i] = malloc(4 * sizes[i]);
    for (unsigned j = 0; j < sizes[i]; j++) data[i][j] = (int)(j * 7 % 5) - 2;
    python("import ctypes\nfrom lowdnn.capi.loading import process_state\ndriver = process_state().driver\n"
           "driver.context_set_current(driver.primary_context_retain(0))\naddress = driver.mem_alloc(4096)\n"
           "ctypes.c_void_p.from_address(%lu).value = address\n"
           "driver.memcpy_htod_async(address, %lu, %u, 0)\ndriver.context_synchronize()\n", &memory[i], data[i],
           4 * sizes[i]);
  }
  int count = run(memory, failed);
  for (int i = 0; i < ARRAYS; i++)
    python("driver.context_synchronize()\ndriver.memcpy_dtoh_async(%2$lu, %1$lu, %3$u, 0)\n"
           "driver.context_synchronize()\n", memory[i], data[i], 4 * sizes[i]);
  printf("%d calls, %s\n", count, failed[0] ? failed : is_right(data) ? "right" : "wrong");
  return 0;
}
