/* Classic calls as frameworks make them: descriptors made, set and destroyed around each call. */
#include <dlfcn.h>
#include <time.h>

#include "cudnn.h"

#define FUNCTIONS(X) \
  X(cudnnActivationForward) \
  X(cudnnAddTensor) \
  X(cudnnBatchNormalizationBackwardEx) \
  X(cudnnBatchNormalizationForwardTrainingEx) \
  X(cudnnConvolutionForward) \
  X(cudnnCreateActivationDescriptor) \
  X(cudnnCreateConvolutionDescriptor) \
  X(cudnnCreateDropoutDescriptor) \
  X(cudnnCreateFilterDescriptor) \
  X(cudnnCreatePoolingDescriptor) \
  X(cudnnCreateRNNDataDescriptor) \
  X(cudnnCreateRNNDescriptor) \
  X(cudnnCreateTensorDescriptor) \
  X(cudnnDestroyActivationDescriptor) \
  X(cudnnDestroyConvolutionDescriptor) \
  X(cudnnDestroyDropoutDescriptor) \
  X(cudnnDestroyFilterDescriptor) \
  X(cudnnDestroyPoolingDescriptor) \
  X(cudnnDestroyRNNDataDescriptor) \
  X(cudnnDestroyRNNDescriptor) \
  X(cudnnDestroyTensorDescriptor) \
  X(cudnnGetBatchNormalizationBackwardExWorkspaceSize) \
  X(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize) \
  X(cudnnGetBatchNormalizationTrainingExReserveSpaceSize) \
  X(cudnnGetConvolutionForwardWorkspaceSize) \
  X(cudnnGetRNNTempSpaceSizes) \
  X(cudnnGetRNNWeightSpaceSize) \
  X(cudnnPoolingForward) \
  X(cudnnRNNForward) \
  X(cudnnSetActivationDescriptor) \
  X(cudnnSetConvolutionGroupCount) \
  X(cudnnSetConvolutionMathType) \
  X(cudnnSetConvolutionNdDescriptor) \
  X(cudnnSetDropoutDescriptor) \
  X(cudnnSetFilterNdDescriptor) \
  X(cudnnSetPooling2dDescriptor) \
  X(cudnnSetRNNDataDescriptor) \
  X(cudnnSetRNNDescriptor_v8) \
  X(cudnnSetTensorNdDescriptor)

/* The functions of one library, whatever other ones of their names the process has. */
#define DECLARE(name) static __typeof__(name) *call_##name;
FUNCTIONS(DECLARE)
#define CALL(name, ...) status |= call_##name(__VA_ARGS__)

enum { N = 4, C = 32, H = 14, W = 14, STEPS = 8, BATCH = 4, HIDDEN = 32 };
/* Places in the addresses that a cycle is given: activations, rows of C floats, a filter, workspace, a network's weights. */
enum { X, Y, DY, DX, SCALE, BIAS, MEAN, VARIANCE, SAVED, INVERSE, FILTER, SPACE, WEIGHTS, ADDRESSES };

static const float one = 1, zero = 0;
/* All statuses, or-ed; the four times of the cycle under way. */
static int status;
static double *times, last_us;

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1e6 + now.tv_nsec * 1e-3;
}

/* The end of one of four parts: descriptors made and set, sizes asked for, the call, descriptors destroyed. */
static void end_part(void) {
  const double now = now_us();
  *times++ = now - last_us;
  last_us = now;
}

/* Descriptors of two activations in channels last, and of a row of their channels. */
static cudnnTensorDescriptor_t x, y, row;

static void describe_tensors(void) {
  const int dims[4] = {N, C, H, W}, strides[4] = {C * H * W, 1, C * W, C};
  const int row_dims[4] = {1, C, 1, 1}, row_strides[4] = {C, 1, 1, 1};
  CALL(cudnnCreateTensorDescriptor, &x);
  CALL(cudnnSetTensorNdDescriptor, x, CUDNN_DATA_HALF, 4, dims, strides);
  CALL(cudnnCreateTensorDescriptor, &y);
  CALL(cudnnSetTensorNdDescriptor, y, CUDNN_DATA_HALF, 4, dims, strides);
  CALL(cudnnCreateTensorDescriptor, &row);
  CALL(cudnnSetTensorNdDescriptor, row, CUDNN_DATA_FLOAT, 4, row_dims, row_strides);
}

static void destroy_tensors(void) {
  CALL(cudnnDestroyTensorDescriptor, row);
  CALL(cudnnDestroyTensorDescriptor, y);
  CALL(cudnnDestroyTensorDescriptor, x);
}

static void batch_norm_forward(cudnnHandle_t handle, void **at) {
  size_t size, reserved;
  describe_tensors();
  end_part();
  CALL(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize, handle, CUDNN_BATCHNORM_SPATIAL_PERSISTENT,
       CUDNN_BATCHNORM_OPS_BN, x, NULL, y, row, NULL, &size);
  CALL(cudnnGetBatchNormalizationTrainingExReserveSpaceSize, handle, CUDNN_BATCHNORM_SPATIAL_PERSISTENT,
       CUDNN_BATCHNORM_OPS_BN, NULL, x, &reserved);
  end_part();
  CALL(cudnnBatchNormalizationForwardTrainingEx, handle, CUDNN_BATCHNORM_SPATIAL_PERSISTENT, CUDNN_BATCHNORM_OPS_BN,
       &one, &zero, x, at[X], NULL, NULL, y, at[Y], row, at[SCALE], at[BIAS], 0.1, at[MEAN], at[VARIANCE], 1e-5,
       at[SAVED], at[INVERSE], NULL, at[SPACE], size, NULL, reserved);
  end_part();
  destroy_tensors();
  end_part();
}

static void batch_norm_backward(cudnnHandle_t handle, void **at) {
  size_t size;
  describe_tensors();
  end_part();
  CALL(cudnnGetBatchNormalizationBackwardExWorkspaceSize, handle, CUDNN_BATCHNORM_SPATIAL_PERSISTENT,
       CUDNN_BATCHNORM_OPS_BN, x, NULL, y, NULL, x, row, NULL, &size);
  end_part();
  CALL(cudnnBatchNormalizationBackwardEx, handle, CUDNN_BATCHNORM_SPATIAL_PERSISTENT, CUDNN_BATCHNORM_OPS_BN, &one,
       &zero, &one, &zero, x, at[X], NULL, NULL, y, at[DY], NULL, NULL, x, at[DX], row, at[SCALE], NULL, at[MEAN],
       at[VARIANCE], 1e-5, at[SAVED], at[INVERSE], NULL, at[SPACE], size, NULL, 0);
  end_part();
  destroy_tensors();
  end_part();
}

static void convolution(cudnnHandle_t handle, void **at) {
  const int filter_dims[4] = {C, C, 3, 3}, ones[2] = {1, 1};
  const cudnnConvolutionFwdAlgo_t algorithm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
  cudnnFilterDescriptor_t w;
  cudnnConvolutionDescriptor_t conv;
  size_t size;
  describe_tensors();
  CALL(cudnnCreateFilterDescriptor, &w);
  CALL(cudnnSetFilterNdDescriptor, w, CUDNN_DATA_HALF, CUDNN_TENSOR_NHWC, 4, filter_dims);
  CALL(cudnnCreateConvolutionDescriptor, &conv);
  CALL(cudnnSetConvolutionNdDescriptor, conv, 2, ones, ones, ones, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
  CALL(cudnnSetConvolutionGroupCount, conv, 1);
  CALL(cudnnSetConvolutionMathType, conv, CUDNN_TENSOR_OP_MATH);
  end_part();
  CALL(cudnnGetConvolutionForwardWorkspaceSize, handle, x, w, conv, y, algorithm, &size);
  end_part();
  CALL(cudnnConvolutionForward, handle, &one, x, at[X], w, at[FILTER], conv, algorithm, at[SPACE], size, &zero, y,
       at[Y]);
  end_part();
  CALL(cudnnDestroyConvolutionDescriptor, conv);
  CALL(cudnnDestroyFilterDescriptor, w);
  destroy_tensors();
  end_part();
}

static void pooling(cudnnHandle_t handle, void **at) {
  cudnnPoolingDescriptor_t pool;
  describe_tensors();
  CALL(cudnnCreatePoolingDescriptor, &pool);
  CALL(cudnnSetPooling2dDescriptor, pool, CUDNN_POOLING_MAX, CUDNN_PROPAGATE_NAN, 3, 3, 1, 1, 1, 1);
  end_part();
  end_part();
  CALL(cudnnPoolingForward, handle, pool, &one, x, at[X], &zero, y, at[Y]);
  end_part();
  CALL(cudnnDestroyPoolingDescriptor, pool);
  destroy_tensors();
  end_part();
}

static void activation(cudnnHandle_t handle, void **at) {
  cudnnActivationDescriptor_t relu;
  describe_tensors();
  CALL(cudnnCreateActivationDescriptor, &relu);
  CALL(cudnnSetActivationDescriptor, relu, CUDNN_ACTIVATION_RELU, CUDNN_PROPAGATE_NAN, 0.0);
  end_part();
  end_part();
  CALL(cudnnActivationForward, handle, relu, &one, x, at[X], &zero, y, at[Y]);
  end_part();
  CALL(cudnnDestroyActivationDescriptor, relu);
  destroy_tensors();
  end_part();
}

static void addition(cudnnHandle_t handle, void **at) {
  describe_tensors();
  end_part();
  end_part();
  CALL(cudnnAddTensor, handle, &one, x, at[X], &one, y, at[Y]);
  end_part();
  destroy_tensors();
  end_part();
}

/* An LSTM of one layer in inference. */
static void recurrence(cudnnHandle_t handle, void **at) {
  const int state_dims[5] = {1, BATCH, HIDDEN, 1, 1}, state_strides[5] = {BATCH * HIDDEN, HIDDEN, 1, 1, 1};
  int lengths[BATCH];
  for (int i = 0; i < BATCH; ++i) lengths[i] = STEPS;
  cudnnDropoutDescriptor_t dropout;
  cudnnRNNDescriptor_t network;
  cudnnRNNDataDescriptor_t in, out;
  cudnnTensorDescriptor_t state;
  size_t weight_bytes, work_bytes, reserve_bytes;
  CALL(cudnnCreateDropoutDescriptor, &dropout);
  CALL(cudnnSetDropoutDescriptor, dropout, handle, 0.0f, NULL, 0, 0);
  CALL(cudnnCreateRNNDescriptor, &network);
  CALL(cudnnSetRNNDescriptor_v8, network, CUDNN_RNN_ALGO_STANDARD, CUDNN_LSTM, CUDNN_RNN_DOUBLE_BIAS,
       CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, CUDNN_DATA_HALF, CUDNN_DATA_FLOAT, CUDNN_TENSOR_OP_MATH, HIDDEN,
       HIDDEN, HIDDEN, 1, dropout, CUDNN_RNN_PADDED_IO_ENABLED);
  CALL(cudnnCreateRNNDataDescriptor, &in);
  CALL(cudnnSetRNNDataDescriptor, in, CUDNN_DATA_HALF, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, STEPS, BATCH, HIDDEN,
       lengths, NULL);
  CALL(cudnnCreateRNNDataDescriptor, &out);
  CALL(cudnnSetRNNDataDescriptor, out, CUDNN_DATA_HALF, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, STEPS, BATCH, HIDDEN,
       lengths, NULL);
  CALL(cudnnCreateTensorDescriptor, &state);
  CALL(cudnnSetTensorNdDescriptor, state, CUDNN_DATA_HALF, 5, state_dims, state_strides);
  end_part();
  CALL(cudnnGetRNNWeightSpaceSize, handle, network, &weight_bytes);
  CALL(cudnnGetRNNTempSpaceSizes, handle, network, CUDNN_FWD_MODE_INFERENCE, in, &work_bytes, &reserve_bytes);
  end_part();
  CALL(cudnnRNNForward, handle, network, CUDNN_FWD_MODE_INFERENCE, NULL, in, at[X], out, at[Y], state, NULL, at[DY],
       state, NULL, at[DX], weight_bytes, at[WEIGHTS], work_bytes, at[SPACE], 0, NULL);
  end_part();
  CALL(cudnnDestroyTensorDescriptor, state);
  CALL(cudnnDestroyRNNDataDescriptor, out);
  CALL(cudnnDestroyRNNDataDescriptor, in);
  CALL(cudnnDestroyRNNDescriptor, network);
  CALL(cudnnDestroyDropoutDescriptor, dropout);
  end_part();
}

/* number: of a cycle in the order of their text.  memory: twice as many addresses as ADDRESSES; cycles take turns.
   times_us: ``cycles`` rows of four times. Returns the statuses of all calls, or-ed. */
int run(void *library, int number, cudnnHandle_t handle, void **memory, int64_t cycles, double *times_us) {
  static void (*const all[])(cudnnHandle_t, void **) = {batch_norm_forward, batch_norm_backward, convolution, pooling,
                                                       activation, addition, recurrence};
#define FIND(name) call_##name = (__typeof__(name) *)dlsym(library, #name);
  FUNCTIONS(FIND)
  status = 0;
  times = times_us;
  for (int64_t cycle = 0; cycle < cycles; ++cycle) {
    last_us = now_us();
    all[number](handle, memory + cycle % 2 * ADDRESSES);
  }
  return status;
}
