#define TROIKA_REDUCE reduce_avx2
#include "troika/comm/kernels/kernels_impl.h"
