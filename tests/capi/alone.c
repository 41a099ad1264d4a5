/* A convolution by a program that knows nothing of Python. The emulated device's memory is Python's, so that the
   program fills and reads it through the interpreter that the library has started. */
#include "cudnn.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define CALL(call)                                                                                                     \
  if (call) {                                                                                                          \
    char why[300];                                                                                                     \
    cudnnGetLastErrorString(why, sizeof why);                                                                          \
    printf("%s: %s\n", #call, why);                                                                                    \
    return 1;                                                                                                          \
  }

static float x[25], w[9], y[25];
static void *memory[4];

static void python(const char *text, void *first, void *second) {
  char code[600];
  int (*ensure)(void), (*run)(const char *);
  void (*release)(int);
  *(void **)&ensure = dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
  *(void **)&run = dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
  *(void **)&release = dlsym(RTLD_DEFAULT, "PyGILState_Release");
  snprintf(code, sizeof code, text, (unsigned long)first, (unsigned long)second);
  int state = ensure();
  if (run(code)) exit(2);
  release(state);
}

int main(void) {
  cudnnHandle_t handle;
  cudnnTensorDescriptor_t image;
  cudnnFilterDescriptor_t filter;
  cudnnConvolutionDescriptor_t conv;
  const float one = 1, zero = 0;
  float *host[4] = {x, w, y, y};
  size_t size;
  for (int i = 0; i < 25; i++) x[i] = i;
  for (int i = 0; i < 9; i++) w[i] = i - 3;
  CALL(cudnnCreate(&handle));
  for (int i = 0; i < 4; i++)
    python("import ctypes\nfrom lowdnn.capi.loading import process_state\ndriver = process_state().driver\n"
           "driver.context_set_current(driver.primary_context_retain(0))\naddress = driver.mem_alloc(65536)\nctypes.c_void_p.from_address(%lu).value = address\n"
           "driver.memcpy_htod_async(address, %lu, 100, 0)\ndriver.context_synchronize()\n", &memory[i], host[i]);
  CALL(cudnnCreateTensorDescriptor(&image));
  CALL(cudnnSetTensor4dDescriptor(image, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 1, 5, 5));
  CALL(cudnnCreateFilterDescriptor(&filter));
  CALL(cudnnSetFilter4dDescriptor(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 1, 1, 3, 3));
  CALL(cudnnCreateConvolutionDescriptor(&conv));
  CALL(cudnnSetConvolution2dDescriptor(conv, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
  CALL(cudnnGetConvolutionForwardWorkspaceSize(handle, image, filter, conv, image, 0, &size));
  if (size > 65536) return 3;
  CALL(cudnnConvolutionForward(handle, &one, image, memory[0], filter, memory[1], conv, 0, memory[3], size, &zero,
                               image, memory[2]));
  python("driver.context_synchronize()\ndriver.memcpy_dtoh_async(%lu, %lu, 100, 0)\ndriver.context_synchronize()\n", y,
         memory[2]);
  for (int i = 0; i < 25; i++) printf("%g ", y[i]);
  CALL(cudnnDestroy(handle));
  return 0;
}
