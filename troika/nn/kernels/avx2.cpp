#define TROIKA_KERNELS kAvx2
#include "troika/nn/kernels/kernels_impl.h"
