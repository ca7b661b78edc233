#define TROIKA_KERNELS kBaseline
#include "troika/nn/kernels/kernels_impl.h"
