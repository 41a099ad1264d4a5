/* Calls of the C API from C, compiled against the written header. Each CALL checks the status and counts one function:
   run(memory, failed) returns how many calls there were and leaves the first one that failed in failed.
   memory: device addresses of x (1x2x5x5 floats), w (3x2x3x3), y (1x3x5x5), bias (3), rows of 3 (4 of them).
   is_right(data): whether the same arrays on the host, x, w and bias of integers, are what run has made of them. */
#include "cudnn.h"
#include <stdio.h>
#include <string.h>

static int calls;
static char *first_failure;

static void check(cudnnStatus_t status, const char *text) {
  calls++;
  if (status != CUDNN_STATUS_SUCCESS && !first_failure[0]) {
    char why[300];
    cudnnGetLastErrorString(why, sizeof why);
    snprintf(first_failure, 500, "%s: %s: %s", text, cudnnGetErrorString(status), why);
  }
}
#define CALL(call) check(call, #call)

static const float one = 1, zero = 0;

static void descriptors(cudnnTensorDescriptor_t tensor, cudnnFilterDescriptor_t filter) {
  int a, b, c, d, e, f, g, h, dims[4] = {1, 2, 5, 5}, strides[4] = {50, 25, 5, 1};
  size_t size;
  cudnnDataType_t type;
  cudnnTensorFormat_t format;
  CALL(cudnnSetTensor4dDescriptor(tensor, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, 1, 2, 5, 5));
  CALL(cudnnSetTensor4dDescriptorEx(tensor, CUDNN_DATA_FLOAT, 1, 2, 5, 5, 50, 25, 5, 1));
  CALL(cudnnGetTensor4dDescriptor(tensor, &type, &a, &b, &c, &d, &e, &f, &g, &h));
  CALL(cudnnSetTensorNdDescriptor(tensor, CUDNN_DATA_FLOAT, 4, dims, strides));
  CALL(cudnnSetTensorNdDescriptorEx(tensor, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 4, dims));
  CALL(cudnnGetTensorNdDescriptor(tensor, 4, &type, &a, dims, strides));
  CALL(cudnnGetTensorSizeInBytes(tensor, &size));
  if (size != 200 || strides[0] != 50 || e != 50) CALL(CUDNN_STATUS_INTERNAL_ERROR);
  CALL(cudnnSetFilter4dDescriptor(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 3, 2, 3, 3));
  CALL(cudnnGetFilter4dDescriptor(filter, &type, &format, &a, &b, &c, &d));
  CALL(cudnnGetFilterNdDescriptor(filter, 4, &type, &format, &a, dims));
  CALL(cudnnSetFilterNdDescriptor(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 4, dims));
  CALL(cudnnGetFilterSizeInBytes(filter, &size));
  if (size != 216) CALL(CUDNN_STATUS_INTERNAL_ERROR);
}

static void convolution(cudnnHandle_t handle, void **memory, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                        cudnnTensorDescriptor_t y) {
  cudnnConvolutionDescriptor_t conv;
  cudnnConvolutionFwdAlgoPerf_t found[8];
  cudnnMathType_t math;
  int n, c, h, wide, count, groups;
  size_t size;
  CALL(cudnnCreateConvolutionDescriptor(&conv));
  CALL(cudnnSetConvolution2dDescriptor(conv, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
  CALL(cudnnSetConvolutionGroupCount(conv, 1));
  CALL(cudnnGetConvolutionGroupCount(conv, &groups));
  CALL(cudnnSetConvolutionMathType(conv, CUDNN_FMA_MATH));
  CALL(cudnnGetConvolutionMathType(conv, &math));
  CALL(cudnnGetConvolution2dForwardOutputDim(conv, x, w, &n, &c, &h, &wide));
  CALL(cudnnSetTensor4dDescriptor(y, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, n, c, h, wide));
  CALL(cudnnGetConvolutionForwardAlgorithmMaxCount(handle, &count));
  CALL(cudnnGetConvolutionForwardAlgorithm_v7(handle, x, w, conv, y, count, &count, found));
  CALL(cudnnGetConvolutionForwardWorkspaceSize(handle, x, w, conv, y, found[0].algo, &size));
  if (size != found[0].memory || size > 0 || groups != 1 || math != CUDNN_FMA_MATH) CALL(CUDNN_STATUS_INTERNAL_ERROR);
  CALL(cudnnConvolutionForward(handle, &one, x, memory[0], w, memory[1], conv, found[0].algo, NULL, 0, &zero, y,
                               memory[2]));
  CALL(cudnnDestroyConvolutionDescriptor(conv));
}

static void epilogue(cudnnHandle_t handle, void **memory, cudnnTensorDescriptor_t y) {
  cudnnTensorDescriptor_t row;
  cudnnActivationDescriptor_t relu;
  cudnnPoolingDescriptor_t pool;
  cudnnOpTensorDescriptor_t op;
  cudnnReduceTensorDescriptor_t sum;
  cudnnActivationMode_t mode;
  cudnnNanPropagation_t nan;
  double coefficient;
  size_t size;
  int n, c, h, w;
  float two = 2;
  CALL(cudnnCreateTensorDescriptor(&row));
  CALL(cudnnDeriveBNTensorDescriptor(row, y, CUDNN_BATCHNORM_SPATIAL));
  CALL(cudnnAddTensor(handle, &one, row, memory[3], &one, y, memory[2]));
  CALL(cudnnCreateActivationDescriptor(&relu));
  CALL(cudnnSetActivationDescriptor(relu, CUDNN_ACTIVATION_RELU, CUDNN_PROPAGATE_NAN, 0.0));
  CALL(cudnnGetActivationDescriptor(relu, &mode, &nan, &coefficient));
  CALL(cudnnActivationForward(handle, relu, &one, y, memory[2], &zero, y, memory[2]));
  CALL(cudnnScaleTensor(handle, y, memory[2], &two));
  CALL(cudnnCreatePoolingDescriptor(&pool));
  CALL(cudnnSetPooling2dDescriptor(pool, CUDNN_POOLING_MAX, nan, 2, 2, 0, 0, 1, 1));
  CALL(cudnnGetPooling2dForwardOutputDim(pool, y, &n, &c, &h, &w));
  if (n != 1 || c != 3 || h != 4 || w != 4) CALL(CUDNN_STATUS_INTERNAL_ERROR);
  CALL(cudnnCreateOpTensorDescriptor(&op));
  CALL(cudnnSetOpTensorDescriptor(op, CUDNN_OP_TENSOR_MUL, CUDNN_DATA_FLOAT, nan));
  CALL(cudnnOpTensor(handle, op, &one, row, memory[3], &one, row, memory[3], &zero, row, memory[4]));
  CALL(cudnnCreateReduceTensorDescriptor(&sum));
  CALL(cudnnSetReduceTensorDescriptor(sum, CUDNN_REDUCE_TENSOR_ADD, CUDNN_DATA_FLOAT, nan,
                                      CUDNN_REDUCE_TENSOR_NO_INDICES, CUDNN_32BIT_INDICES));
  CALL(cudnnGetReductionWorkspaceSize(handle, sum, y, row, &size));
  if (size > 0) CALL(CUDNN_STATUS_INTERNAL_ERROR);
  CALL(cudnnReduceTensor(handle, sum, NULL, 0, NULL, 0, &one, y, memory[2], &zero, row, memory[5]));
  CALL(cudnnConvolutionBackwardBias(handle, &one, y, memory[2], &zero, row, memory[6]));
  CALL(cudnnSetTensor(handle, row, memory[7], &two));
  CALL(cudnnDestroyReduceTensorDescriptor(sum));
  CALL(cudnnDestroyOpTensorDescriptor(op));
  CALL(cudnnDestroyPoolingDescriptor(pool));
  CALL(cudnnDestroyActivationDescriptor(relu));
  CALL(cudnnDestroyTensorDescriptor(row));
}

int run(void **memory, char *failed) {
  cudnnHandle_t handle;
  cudaStream_t stream;
  cudnnTensorDescriptor_t x, y;
  cudnnFilterDescriptor_t w;
  cudnnBackendDescriptor_t tensor;
  int64_t uid = 7, count = 0;
  calls = 0;
  first_failure = failed;
  failed[0] = 0;
  CALL(cudnnGraphVersionCheck());
  CALL(cudnnOpsVersionCheck());
  CALL(cudnnCnnVersionCheck());
  CALL(cudnnAdvVersionCheck());
  CALL(cudnnCreate(&handle));
  CALL(cudnnSetStream(handle, NULL));
  CALL(cudnnGetStream(handle, &stream));
  CALL(cudnnCreateTensorDescriptor(&x));
  CALL(cudnnCreateTensorDescriptor(&y));
  CALL(cudnnCreateFilterDescriptor(&w));
  descriptors(x, w);
  convolution(handle, memory, x, w, y);
  epilogue(handle, memory, y);
  CALL(cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, &tensor));
  CALL(cudnnBackendSetAttribute(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid));
  if (cudnnBackendGetAttribute(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &count, &uid) !=
      CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED)
    CALL(CUDNN_STATUS_INTERNAL_ERROR);
  CALL(cudnnBackendDestroyDescriptor(tensor));
  CALL(cudnnDestroyFilterDescriptor(w));
  CALL(cudnnDestroyTensorDescriptor(y));
  CALL(cudnnDestroyTensorDescriptor(x));
  CALL(cudnnDestroy(handle));
  return calls;
}

static float convolved(const float *x, const float *w, int k, int row, int column) {
  float sum = 0;
  for (int c = 0; c < 2; c++)
    for (int r = 0; r < 3; r++)
      for (int s = 0; s < 3; s++) {
        int h = row + r - 1, wide = column + s - 1;
        if (h >= 0 && h < 5 && wide >= 0 && wide < 5) sum += x[25 * c + 5 * h + wide] * w[18 * k + 9 * c + 3 * r + s];
      }
  return sum;
}

int is_right(float *const *data) {
  const float *x = data[0], *w = data[1], *y = data[2], *bias = data[3];
  for (int k = 0; k < 3; k++) {
    float sum = 0;
    for (int i = 0; i < 25; i++) {
      float value = convolved(x, w, k, i / 5, i % 5) + bias[k];
      if (y[25 * k + i] != (value > 0 ? 2 * value : 0)) return 0;
      sum += y[25 * k + i];
    }
    if (data[4][k] != bias[k] * bias[k] || data[5][k] != sum || data[6][k] != sum || data[7][k] != 2) return 0;
  }
  return 1;
}
