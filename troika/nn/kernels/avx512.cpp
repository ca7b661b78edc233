#define TROIKA_KERNELS kAvx512
#include "troika/nn/kernels/kernels_impl.h"
